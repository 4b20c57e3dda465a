// Both phases of any model on any device: the arithmetic of tinyinfer.performance, with its names.
// Tests compare every number with Python's.
(() => {
  "use strict";

  const bytesOf = { fp32: 4, tf32: 4, bf16: 2, fp16: 2, fp8: 1, int8: 1, int4: 0.5 };

  const countWeights = (model) => {
    const [query, kv] = [model.heads * model.head_dim, model.kv_heads * model.head_dim];
    const matrices = model.model_dim * (2 * query + 2 * kv + 3 * model.ffn_dim);
    const biases = (model.qkv_bias ? query + 2 * kv : 0) + (model.output_bias ? model.model_dim : 0);
    const norms = 2 * model.model_dim + (model.qk_norm ? 2 * model.head_dim : 0);
    const head = model.vocab * model.model_dim;
    const read = model.layers * (matrices + biases + norms) + model.model_dim + head; // by every pass
    return { matrices, head, read, held: read + (model.tied_head ? 0 : head) };
  };

  const kvBytesPerToken = (model, number) => 2 * model.layers * model.kv_heads * model.head_dim * number;

  const countWork = (model, number, { batch, tokens, pairs, rowsRead }) => {
    const { matrices, head, read } = countWeights(model);
    const products = tokens * matrices + 2 * pairs * model.heads * model.head_dim;
    return {
      flops: batch * 2 * (model.layers * products + head),
      bytes: read * number + batch * (tokens + rowsRead) * kvBytesPerToken(model, number),
      launches: 9 * model.layers + 1,
    };
  };

  const causalPairs = (length, window) => {
    const growing = window === null ? length : Math.min(length, window);
    return (growing * (growing + 1)) / 2 + (length - growing) * (window || 0);
  };

  const prefillWork = (model, number, prompt, batch) =>
    countWork(model, number, { batch, tokens: prompt, pairs: causalPairs(prompt, model.sliding_window), rowsRead: 0 });

  const decodeWork = (model, number, context, batch) => {
    const keys = Math.min(context, model.sliding_window || context);
    return countWork(model, number, { batch, tokens: 1, pairs: keys, rowsRead: keys });
  };

  const limitsOn = (device, dtype, { flops, bytes, launches }) => {
    const peak = device.flops_per_second[dtype];
    const compute = peak ? flops / peak : 0;
    const memory = bytes / device.bytes_per_second;
    const launch = launches * device.launch_floor_seconds;
    const bound = launch > Math.max(compute, memory) ? "launch" : compute > memory ? "compute" : "memory";
    return { compute, memory, launch, bound, seconds: Math.max(compute, memory) + launch };
  };

  const memoryNeeded = (model, number, batch, rows) => {
    const [weights, cache] = [countWeights(model).held * number, batch * rows * kvBytesPerToken(model, number)];
    return { weights, cache, together: weights + cache };
  };

  const predict = (device, dtype, work, tokens) => {
    const limits = limitsOn(device, dtype, work);
    return { ...limits, ...work, intensity: work.flops / work.bytes, tokensPerSecond: tokens / limits.seconds };
  };

  const predictPrefill = (model, device, dtype, prompt, batch) =>
    predict(device, dtype, prefillWork(model, bytesOf[dtype], prompt, batch), batch * prompt);

  const predictDecode = (model, device, dtype, context, batch) =>
    predict(device, dtype, decodeWork(model, bytesOf[dtype], context, batch), batch);

  const largestBatch = (model, device, dtype, rows) => {
    if (device.memory_bytes === null) return null;
    const { weights, cache } = memoryNeeded(model, bytesOf[dtype], 1, rows);
    return Math.max(0, Math.floor((device.memory_bytes - weights) / cache));
  };

  // The smallest batch at which decode is compute-bound; null where there is none, or no FLOP/s.
  const criticalBatch = (model, device, dtype, context) => {
    if (!device.flops_per_second[dtype]) return null;
    const step = (batch) => decodeWork(model, bytesOf[dtype], context, batch);
    const [one, two] = [step(1), step(2)];
    const sequence = { flops: two.flops - one.flops, bytes: two.bytes - one.bytes, launches: 0 };
    const shared = limitsOn(device, dtype, { flops: 0, bytes: one.bytes - sequence.bytes, launches: one.launches });
    const own = limitsOn(device, dtype, sequence);
    if (own.compute <= own.memory) return null;
    const beyond = [shared.memory / (own.compute - own.memory), shared.launch / own.compute];
    // A quotient may round across a whole number; the limits themselves decide.
    const first = Math.max(...beyond.map(Math.floor));
    const near = [first, first + 1, first + 2].filter((batch) => batch > 0);
    return near.find((batch) => limitsOn(device, dtype, step(batch)).bound === "compute") ?? null;
  };

  // Three digits and a decimal prefix, as Python's `with_prefix`: a tie goes to the even digit.
  const toThreeDigits = (value) => {
    const [, kept, exponent] = value.toExponential(40).match(/^(\d\.\d[02468])50*(e.*)$/) || [];
    return Number(kept ? kept + exponent : value.toPrecision(3));
  };
  const withPrefix = (value, unit) => {
    const rounded = toThreeDigits(value);
    const power = Math.max(-3, Math.min(unit === "s" ? 0 : 6, rounded && Math.floor(Math.log10(rounded) / 3 + 1e-9)));
    const scaled = rounded / 1000 ** power;
    const prefix = ["n", "µ", "m", "", "k", "M", "G", "T", "P", "E"][power + 3];
    const digits = scaled < 100 ? scaled.toFixed(scaled < 10 ? 2 : 1) : count(Math.round(scaled));
    return `${digits} ${prefix}${unit}`;
  };
  const count = (number) => number.toLocaleString("en-US");
  const plain = (value) => {
    const places = value < 0.1 ? 3 : value < 1 ? 2 : value < 100 ? 1 : 0;
    const [whole, rest] = value.toFixed(places).split(".");
    return count(Number(whole)) + (rest ? `.${rest}` : "");
  };

  Object.assign(window.tinyinfer, {
    ...{ bytesOf, memoryNeeded, predictPrefill, predictDecode, largestBatch, criticalBatch },
    ...{ count, plain, withPrefix },
  });
})();
