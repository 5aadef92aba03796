// The values of /metrics, while that part of the menu is open.
const history = [];
function drawMetrics(text) {
  const sum = (name) =>
    text
      .split("\n")
      .filter((line) => line.startsWith(name + "{") || line.startsWith(name + " "))
      .reduce((all, line) => all + Number(line.slice(line.lastIndexOf(" "))), 0);
  const now = performance.now() / 1000;
  const tokens = sum("mlx_completion_tokens_total");
  const read = sum("mlx_prompt_tokens_total");
  const last = history.at(-1);
  history.push({
    now,
    tokens,
    read,
    rate: last ? Math.max(0, tokens - last.tokens) / (now - last.now) : 0,
    reading: last ? Math.max(0, read - last.read) / (now - last.now) : 0,
  });
  if (history.length > 61) history.shift();
  const { rate, reading } = history.at(-1);
  const top = Math.max(1, ...history.map((it) => it.rate));
  const gib = (name) => (sum(name) / 2 ** 30).toFixed(2);
  $("curve").setAttribute(
    "points",
    history
      .map((it, place) => (place + 61 - history.length) / 0.6 + "," + (39 - (37 * it.rate) / top))
      .join(" "),
  );
  const between = sum("mlx_inter_token_seconds_sum") / sum("mlx_inter_token_seconds_count");
  const first = sum("mlx_time_to_first_token_seconds_sum") / sum("mlx_time_to_first_token_seconds_count");
  const ms = (it) => (it ? (1000 * it).toFixed(it < 0.01 ? 1 : 0) + " ms" : "–");
  const rows = [
    ["Tokens/s, last 2 minutes", rate.toFixed(1)],
    ["Prompt tokens/s", reading.toFixed(0)],
    ["Running", sum("mlx_requests_running")],
    ["Waiting", sum("mlx_requests_waiting")],
    ["Finished", sum("mlx_requests_finished_total")],
    ["First token, mean", ms(first)],
    ["Between tokens, mean", ms(between)],
    ["Memory used", gib("mlx_used_bytes") + " of " + gib("mlx_budget_bytes") + " GiB"],
    ["Prefix cache", gib("mlx_prefix_cache_bytes") + " GiB"],
    ["Prefix cache hits", sum("mlx_prefix_cache_hits_total")],
    ["Prompt tokens computed", read],
    ["Prompt tokens reused", sum("mlx_cached_tokens_total")],
  ];
  $("figures").replaceChildren(
    ...rows.flatMap(([name, value], place) => [
      el("dt", { textContent: name, id: place ? "" : "rate" }),
      el("dd", { textContent: value }),
    ]),
  );
}
async function watch() {
  if (document.hidden || reconnectTimer || !$("locked").hidden || !$("server").open) return;
  try {
    drawMetrics(await (await request("metrics")).text());
  } catch (error) {
    if (error instanceof Unreachable) onUnreachable();
  }
}
$("server").ontoggle = watch;
