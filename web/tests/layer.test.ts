// A layer's weights from its queries, keys and row sums, against a slow plain softmax.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { TensorPlace } from "../src/binary";
import { EmbeddedLayer, groupEnds, type PackedLayer, pooled } from "../src/layer";
import type { LayerMeta } from "../src/types";

const [HEADS, KV, QUERIES, KEYS, DIM] = [6, 3, 5, 7, 2];

let seed = 1;
const random = () => {
  seed = (seed * 16807) % 2147483647;
  return (4 * seed) / 2147483647 - 2;
};
const numbers = (count: number) => Float32Array.from({ length: count }, random);

/** A packed layer, and its weights worked out row by row; NaN where masked. */
function made(rule: Partial<PackedLayer>, more: Record<string, Float32Array> = {}) {
  const q = numbers(HEADS * QUERIES * DIM);
  const k = numbers(KV * KEYS * DIM);
  const bias = more["bias"];
  const scale = 0.5;
  const visible = (query: number, key: number) =>
    (!rule.causal || key <= query + (rule.start ?? 0)) &&
    (!rule.window || Math.abs(query + (rule.start ?? 0) - key) < rule.window) &&
    (!more["seen"] || more["seen"][key] === 1);
  const expected = new Float32Array(HEADS * QUERIES * KEYS).fill(NaN);
  const lse = new Float32Array(HEADS * QUERIES);
  for (let head = 0; head < HEADS; head++)
    for (let query = 0; query < QUERIES; query++) {
      const scores: number[] = [];
      for (let key = 0; key < KEYS; key++) {
        const kv = Math.floor(head / (HEADS / KV));
        let score = 0;
        for (let d = 0; d < DIM; d++)
          score += q[(head * QUERIES + query) * DIM + d]! * k[(kv * KEYS + key) * DIM + d]!;
        score *= scale;
        if (rule.softcap) score = rule.softcap * Math.tanh(score / rule.softcap);
        if (bias) score -= bias[head]! * Math.abs(key - query - (rule.start ?? 0));
        scores.push(visible(query, key) ? score : -Infinity);
      }
      const sum = scores.reduce((a, s) => a + Math.exp(s), 0);
      lse[head * QUERIES + query] = Math.log(sum);
      scores.forEach((score, key) => {
        if (score > -Infinity) expected[(head * QUERIES + query) * KEYS + key] = Math.exp(score) / sum;
      });
    }
  const shapes: Record<string, number[]> = {
    q: [HEADS, QUERIES, DIM],
    k: [KV, KEYS, DIM],
    lse: [HEADS, QUERIES],
    bias: [HEADS],
    seen: [KEYS],
  };
  const all = { q, k, lse, ...more };
  const bytes: number[] = [];
  const tensors: Record<string, TensorPlace> = {};
  for (const [name, values] of Object.entries(all)) {
    const raw = name === "seen" ? Uint8Array.from(values) : new Uint8Array(values.buffer);
    tensors[name] = {
      dtype: name === "seen" ? "uint8" : "float32",
      shape: shapes[name]!,
      at: bytes.length,
      bytes: raw.length,
    };
    bytes.push(...raw);
  }
  const meta = { mechanism: "softmax", heads: HEADS, queries: QUERIES, keys: KEYS } as LayerMeta;
  const usual = { scale, softcap: null, causal: false, start: 0, window: null, biasKind: null, biasZero: 0 };
  const layer = new EmbeddedLayer(meta, { ...usual, ...rule, tensors }, () => Uint8Array.from(bytes));
  return { layer, expected };
}

const close = (found: Float32Array, expected: Float32Array) => {
  assert.equal(found.length, expected.length);
  found.forEach((value, i) => {
    assert.equal(Number.isNaN(value), Number.isNaN(expected[i]!), `masked at ${i}`);
    if (!Number.isNaN(value)) assert.ok(Math.abs(value - expected[i]!) < 1e-6, `${i}: ${value}`);
  });
};

const RULES: Record<string, [Partial<PackedLayer>, Record<string, Float32Array>?]> = {
  plain: [{}],
  "causal after a cache": [{ causal: true, start: 2 }],
  window: [{ causal: true, start: 2, window: 3 }],
  softcap: [{ softcap: 0.7 }],
  slope: [{ biasKind: "slope", causal: true, start: 2 }, { bias: Float32Array.of(1, 0.5, 0.25, 2, 3, 0.1) }],
  padding: [{}, { seen: Float32Array.of(1, 1, 0, 1, 1, 1, 0) }],
};

for (const [name, [rule, more]] of Object.entries(RULES))
  test(`weights are those of a plain softmax: ${name}`, () => {
    const { layer, expected } = made(rule, more);
    for (let head = 0; head < HEADS; head++)
      close(
        layer.rows(head, 0, QUERIES, 0, KEYS, false),
        expected.slice(head * QUERIES * KEYS, (head + 1) * QUERIES * KEYS),
      );
  });

test("a row taken apart has the scores whose softmax is the row", () => {
  const { layer, expected } = made({ causal: true, start: 2, softcap: 0.9 });
  const row = layer.machine(4, 3, 1);
  const hot = row.scores.map((score, i) => (row.visible[i] ? Math.exp(score) : 0));
  const sum = hot.reduce((a, b) => a + b, 0);
  hot.forEach((value, key) => {
    const weight = expected[(4 * QUERIES + 3) * KEYS + key]!;
    assert.ok(Math.abs(value / sum - (Number.isNaN(weight) ? 0 : weight)) < 1e-6);
  });
  assert.equal(row.rest, null);
});

test("groups of cells divide all of a line, nearly equally", () => {
  assert.deepEqual(groupEnds(3, 13, 4), [3, 5, 8, 10, 13]);
  assert.deepEqual(groupEnds(0, 2, 5), [0, 1, 2]);
});

test("a pooled tile is the largest visible weight of each group", async () => {
  const { layer, expected } = made({ causal: true });
  const region = { layer: 0, head: 2, r0: 0, r1: QUERIES, c0: 1, c1: KEYS, nRow: 2, nCol: 3, valued: false };
  const found = await pooled(layer, region, async () => undefined);
  const [rows, cols] = [groupEnds(0, QUERIES, 2), groupEnds(1, KEYS, 3)];
  const largest = new Float32Array(6).fill(NaN);
  for (let r = 0; r < QUERIES; r++)
    for (let c = 1; c < KEYS; c++) {
      const value = expected[(2 * QUERIES + r) * KEYS + c]!;
      const at = rows.findLastIndex((end) => end <= r) * 3 + cols.findLastIndex((end) => end <= c);
      if (!(largest[at]! >= value) && !Number.isNaN(value)) largest[at] = value;
    }
  close(found.values, largest);
});
