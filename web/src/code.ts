// One head in code, with the shapes and steps of the layer that is shown.

import { number } from "./dom";
import type { LayerMeta, ScoreParts } from "./types";

/** The key and value head that a query head shares with its group. */
export const kvHeadOf = (meta: Pick<LayerMeta, "heads" | "kvHeads">, head: number): number =>
  Math.floor((head * meta.kvHeads) / meta.heads);

/** Lines of PyTorch that compute this weight as the layer does. What the trace does not tell is said so. */
export function codeOf(
  meta: LayerMeta,
  parts: ScoreParts,
  wide: number | null, // of the vectors that the layer reads; null: not known
  at: { head: number; query: number; key: number },
): string[] {
  const { head, query, key } = at;
  const kv = kvHeadOf(meta, head);
  const { queries, keys, recipe } = meta;
  const [dim, vdim] = [parts.q.length, parts.v?.length ?? parts.q.length];
  const model = wide ?? "model_dim";
  const memory = meta.kind === "cross" ? "memory" : "x";
  const weight = number(parts.visible ? parts.weight : 0);
  const lines: string[] = [];
  if (parts.mechanism === "dense")
    return [`w[${query}, ${key}]  # ${weight}: these weights were given as they are`];
  if (meta.kvHeads < meta.heads)
    lines.push(
      `# ${meta.heads} query heads share ${meta.kvHeads} key/value heads: head ${head} uses number ${kv}`,
    );
  if (recipe) {
    lines.push(`q = x @ W_q[${head}]  # (${queries}, ${model}) @ (${model}, ${dim}) -> (${queries}, ${dim})`);
    lines.push(`k = ${memory} @ W_k[${kv}]  # (${keys}, ${dim})`);
    lines.push(`v = ${memory} @ W_v[${kv}]  # (${keys}, ${vdim})`);
    if (recipe.bias) lines[lines.length - 1] += "; each plus its bias";
    if (recipe.qkNorm) lines.push("q, k = rms_norm(q), rms_norm(k)");
    if (recipe.rotary) lines.push("q, k = rotate(q, query_positions), rotate(k, key_positions)");
  } else
    lines.push(
      `q, k, v = ...  # (${queries}, ${dim}), (${keys}, ${dim}), (${keys}, ${vdim}): as they met, projected and positioned`,
    );
  if (parts.mechanism === "linear") {
    lines.push("s = phi(q) @ phi(k).T  # phi: the feature map");
    lines.push(`w = s / s.sum(-1, keepdim=True)  # w[${query}, ${key}] = ${weight}`);
  } else {
    lines.push(
      parts.additive
        ? "s = (w_a * tanh(q[:, None] + k[None])).sum(-1)"
        : `s = q @ k.T * ${number(parts.scale ?? 1)}  # (${queries}, ${keys})`,
    );
    if (parts.softcap !== null) lines.push(`s = ${parts.softcap} * tanh(s / ${parts.softcap})`);
    if (meta.bias) lines.push("s = s + position_bias");
    if (meta.masked) lines.push("s = s.masked_fill(~visible, -inf)");
    lines.push(
      meta.sink
        ? `w = softmax(cat([s, sink]), -1)[:, :${keys}]  # the sink takes its share; w[${query}, ${key}] = ${weight}`
        : `w = softmax(s, -1)  # w[${query}, ${key}] = ${weight}`,
    );
  }
  if (recipe?.gate) lines.push("o = (w @ v) * sigmoid(gate(x))");
  const output = recipe?.gate ? "o" : "(w @ v)";
  if (recipe)
    lines.push(
      recipe.writesAsIs || recipe.gate
        ? `x = x + ${output} @ W_o[${head}]  # one term of the sum over heads, (${queries}, ${model})`
        : `x = norm(x + ${output} @ W_o[${head}] + ...)  # all heads are added, then normalized`,
    );
  else lines.push(`o = w @ v  # (${queries}, ${vdim})`);
  return lines;
}
