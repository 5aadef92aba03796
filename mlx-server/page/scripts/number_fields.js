// Fields for numbers: they take a comma as the decimal sign, and check the range that the server's OpenAPI description states.
const isNumberField = (name) => typesOf(name).some((it) => it === "number" || it === "integer");
const isWholeField = (name) => typesOf(name).includes("integer");
// "0,7" and "0.7" are the same number. In a whole number, "4,000", a comma is no decimal sign, so it is no number here.
const numberOf = (name, given) =>
  Number(isWholeField(name) ? given : given.trim().replace(/^([+-]?\d*),(\d+)$/, "$1.$2"));
function rangeText({ minimum, maximum }) {
  if (minimum === undefined && maximum === undefined) return "";
  if (maximum === undefined) return "at least " + minimum;
  return minimum === undefined ? "at most " + maximum : "from " + minimum + " to " + maximum;
}
// Returns a sentence if the value of a field is not a number in its range.
function problemOf(name, given) {
  if (!isNumberField(name) || !given?.trim()) return "";
  const schema = schemas.get(name);
  const value = numberOf(name, given);
  const isWhole = isWholeField(name);
  if (isWhole ? !Number.isInteger(value) : !Number.isFinite(value)) {
    const kind = isWhole ? "a whole number" + (given.includes(",") ? " without a comma" : "") : "a number";
    return name + " is " + given.trim() + "; it must be " + kind;
  }
  const isInside = !(value < schema.minimum) && !(value > schema.maximum);
  return isInside ? "" : name + " is " + value + "; it must be " + rangeText(schema);
}
function showProblem(name) {
  const control = controls.get(name);
  const text = problemOf(name, shown.fields[name]);
  const problem = $("problem-" + name);
  if (text) control.setAttribute("aria-invalid", "true");
  else control.removeAttribute("aria-invalid");
  problem.textContent = text;
  problem.hidden = !text;
}
// Returns true if all numbers are in their ranges. Otherwise the first wrong field is reported.
function checkNumbers() {
  const wrong = Object.keys(shown.fields).find((name) => problemOf(name, shown.fields[name]));
  if (!wrong) return true;
  showProblem(wrong);
  flashHint("Not sent: " + problemOf(wrong, shown.fields[wrong]) + ".");
  return false;
}
