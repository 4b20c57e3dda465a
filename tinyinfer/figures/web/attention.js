// One row of attention at a time: choose the token that asks.
(() => {
  "use strict";
  const { make, table, digits, widgets } = window.tinyinfer;

  const softmax = (scores) => {
    const largest = Math.max(...scores);
    const exponentials = scores.map((score) => Math.exp(score - largest));
    const sum = exponentials.reduce((total, one) => total + one, 0);
    return exponentials.map((one) => one / sum);
  };

  const dot = (one, other) => one.reduce((sum, number, place) => sum + number * other[place], 0);

  // The row of one token: products with all keys, scores after scale and mask, weights, and the mix of values.
  const attend = (queries, keys, values, asking, { masked = true, scaled = true } = {}) => {
    const scale = scaled ? 1 / Math.sqrt(queries[asking].length) : 1;
    const products = keys.map((key) => dot(queries[asking], key));
    const scores = products.map((product, asked) => (masked && asked > asking ? -Infinity : product * scale));
    const weights = softmax(scores);
    const output = values[0].map((_, place) => dot(weights, values.map((value) => value[place])));
    return { products, scores, weights, output };
  };
  Object.assign(window.tinyinfer, { softmax, attend });

  widgets.attention = (stage, { tokens, queries, keys, values }, id) => {
    let asking = tokens.length - 1;
    const vector = (numbers) => numbers.map((number) => digits(number, 2)).join(" ");
    const [status, result] = [make("p", { "aria-live": "polite" }), make("div")];
    const show = (token) => {
      asking = token;
      draw();
    };
    const inputs = tokens.map((_, token) =>
      make("input", { type: "radio", name: `${id}-token`, checked: token === asking, onchange: () => show(token) }),
    );
    // A mouse over a token shows its row, and leaves the choice as it was.
    const hover = (token) => ({ pointerType }) => pointerType === "mouse" && show(token());
    const onpointerleave = hover(() => inputs.findIndex(({ checked }) => checked));
    const labels = tokens.map((token, place) =>
      make("label", { onpointerenter: hover(() => place), onpointerleave }, inputs[place], token),
    );
    const masked = make("input", { type: "checkbox", checked: true, onchange: draw });
    const scaled = make("input", { type: "checkbox", checked: true, onchange: draw });

    function draw() {
      const options = { masked: masked.checked, scaled: scaled.checked };
      const { products, scores, weights, output } = attend(queries, keys, values, asking, options);
      const rows = tokens.map((token, asked) => {
        const hidden = scores[asked] === -Infinity;
        const bar = make("span", { class: "bar", style: `width: ${(100 * weights[asked]).toFixed(1)}%` });
        return [
          token,
          vector(keys[asked]),
          digits(products[asked], 2),
          make("td", hidden ? { class: "masked" } : {}, make("span", {}, digits(scores[asked], 2))),
          make("td", {}, hidden ? "0" : weights[asked].toFixed(3), bar),
          vector(values[asked]),
        ];
      });
      const heads = ["token", "its key", "q · k", "score", "weight", "its value"];
      const mixed = output.map((one) => one.toFixed(3)).join(" ");
      status.textContent = `${tokens[asking]} asks with the query ${vector(queries[asking])}`;
      result.replaceChildren(
        table(heads, rows),
        make("p", {}, "Values mixed by these weights: ", make("output", {}, mixed)),
      );
    }

    stage.append(
      make("fieldset", { class: "tokens" }, make("legend", {}, "Who asks?"), ...labels),
      make(
        "div",
        { class: "controls" },
        make("label", {}, masked, "causal mask"),
        make("label", {}, scaled, `divide by √${queries[0].length}`),
      ),
      status,
      result,
    );
    draw();
  };
})();
