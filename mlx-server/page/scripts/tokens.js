// The tokens of an answer, colored by probability, and the alternatives of one of them.
const percent = (l) => (100 * Math.exp(l)).toFixed(1) + " %";
function tokensNode(node) {
  const others = el("div", { className: "others" });
  const tokens = node.tokens.map((token, index) => {
    const p = Math.exp(token.l);
    const level = p > 0.9 ? 0 : p > 0.6 ? 1 : p > 0.3 ? 2 : p > 0.1 ? 3 : 4;
    // Browsers lay out a button as a separate block, so a line break inside it would not break the surrounding text.
    const it = el("span", {
      tabIndex: 0,
      className: "p" + level,
      textContent: visible(token.t),
      title: percent(token.l),
    });
    it.setAttribute("role", "button");
    const name = token.t.trim() ? visible(token.t) : JSON.stringify(token.t);
    it.setAttribute("aria-label", name + ", " + percent(token.l));
    it.onkeydown = (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        it.click();
      }
    };
    it.onclick = () =>
      others.replaceChildren(
        ...token.o.map((o) =>
          button(
            JSON.stringify(o.t) + " " + percent(o.l),
            "Branch with " + JSON.stringify(o.t) + ", " + percent(o.l),
            () => {
              if (!isAnswering(shown.id)) branchAt(node, index, o);
            },
          ),
        ),
      );
    return it;
  });
  const legend = el(
    "div",
    { className: "legend" },
    "Probability: ",
    ["above 90 %", "60", "30", "10", "below"].map((text, level) =>
      el("span", { className: "p" + level, textContent: text }),
    ),
    " Click on a token for its alternatives.",
  );
  return el(
    "div",
    {},
    el("div", { className: "tokens" }, tokens),
    el("div", { className: "panel" }, others, legend),
  );
}
