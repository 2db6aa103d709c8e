// A layer whose queries, keys and row sums are in the page: any weight is exp(score - lse), as in tracing.py.

import { type TensorPlace, tensorAt } from "./binary";
import type { LayerMeta, MachineRow, ModelPart, Region, ScoreParts, Tile } from "./types";

export interface PackedLayer {
  tensors: Record<string, TensorPlace>;
  scale: number | null;
  softcap: number | null;
  causal: boolean;
  start: number;
  window: number | null;
  biasKind: "distance" | "slope" | "dense" | null;
  biasZero: number;
  wrote?: Record<string, Pick<ModelPart, "added" | "length" | "push">>; // by head and query, where there is an x
}

const NOTHING = new Float32Array(0);
const MOST_KEYS = 256; // of a row that is taken apart

export class EmbeddedLayer {
  private readonly cache = new Map<string, Float32Array>();
  private norms: Float32Array | null = null;

  constructor(
    readonly meta: LayerMeta,
    private readonly packed: PackedLayer,
    private readonly bytes: () => Uint8Array,
  ) {}

  private tensor(name: string): Float32Array {
    let found = this.cache.get(name);
    if (!found) {
      const place = this.packed.tensors[name];
      found = place ? tensorAt(this.bytes(), place) : NOTHING;
      this.cache.set(name, found);
    }
    return found;
  }

  private has(name: string): boolean {
    return name in this.packed.tensors;
  }

  private shape(name: string): number[] {
    return this.packed.tensors[name]!.shape;
  }

  visible(head: number, query: number, key: number): boolean {
    const p = this.packed;
    const position = query + p.start;
    if (p.causal && key > position) return false;
    if (p.window !== null && Math.abs(position - key) >= p.window) return false;
    if (this.has("seen") && !this.tensor("seen")[key]) return false;
    if (this.has("lengths") && key >= this.tensor("lengths")[query]!) return false;
    if (this.has("query_segment") && this.tensor("query_segment")[query] !== this.tensor("key_segment")[key])
      return false;
    if (this.has("pairs")) {
      const [heads, queries, keys] = this.shape("pairs") as [number, number, number];
      if (!this.tensor("pairs")[((heads > 1 ? head : 0) * queries + query) * keys + key]) return false;
    }
    return true;
  }

  private bias(head: number, query: number, key: number): number {
    const p = this.packed;
    if (!p.biasKind) return 0;
    const values = this.tensor("bias");
    const shape = this.shape("bias");
    const own = shape[0]! > 1 ? head : 0;
    const distance = key - (query + p.start);
    if (p.biasKind === "distance") return values[own * shape[1]! + p.biasZero + distance]!;
    if (p.biasKind === "slope") return -values[own]! * Math.abs(distance);
    return values[(own * shape[1]! + (shape[1]! > 1 ? query : 0)) * shape[2]! + key]!;
  }

  /** The product of a query and a key, or the additive score; before scale, cap and bias. */
  private product(q: Float32Array, k: Float32Array, at: number, to: number, dim: number): number {
    let sum = 0;
    if (this.has("additive")) {
      const w = this.tensor("additive");
      for (let d = 0; d < dim; d++) sum += w[d]! * Math.tanh(q[at + d]! + k[to + d]!);
    } else {
      for (let d = 0; d < dim; d++) sum += q[at + d]! * k[to + d]!;
    }
    return sum;
  }

  /** Weights of some rows and columns into `out`, NaN where hidden. */
  rows(head: number, r0: number, r1: number, c0: number, c1: number, valued: boolean): Float32Array {
    const { queries, keys, heads } = this.meta;
    const width = c1 - c0;
    const out = new Float32Array((r1 - r0) * width);
    const p = this.packed;
    const norms = valued ? this.valueNorms(head) : null;
    if (this.meta.mechanism === "dense") {
      const values = this.tensor("values");
      for (let r = r0; r < r1; r++) {
        for (let c = c0; c < c1; c++) {
          out[(r - r0) * width + c - c0] = this.visible(head, r, c)
            ? values[(head * queries + r) * keys + c]!
            : NaN;
        }
      }
      return out;
    }
    const q = this.tensor("q");
    const k = this.tensor("k");
    const dim = this.shape("q")[2]!;
    const kvHead = Math.floor((head * this.shape("k")[0]!) / heads);
    const sums = this.tensor(this.meta.mechanism === "linear" ? "normaliser" : "lse");
    const scale = this.has("additive") || this.meta.mechanism === "linear" ? 1 : p.scale!;
    const everyPair = !(
      p.causal ||
      p.window !== null ||
      this.has("seen") ||
      this.has("lengths") ||
      this.has("query_segment") ||
      this.has("pairs")
    );
    for (let r = r0; r < r1; r++) {
      const sum = sums[head * queries + r]!;
      const at = (head * queries + r) * dim;
      for (let c = c0; c < c1; c++) {
        const cell = (r - r0) * width + c - c0;
        if (!everyPair && !this.visible(head, r, c)) {
          out[cell] = NaN;
          continue;
        }
        let score = this.product(q, k, at, (kvHead * keys + c) * dim, dim) * scale;
        let weight: number;
        if (this.meta.mechanism === "linear") weight = sum === 0 ? 0 : score / sum;
        else {
          if (p.softcap !== null) score = p.softcap * Math.tanh(score / p.softcap);
          if (p.biasKind) score += this.bias(head, r, c);
          weight = sum === -Infinity ? 0 : Math.exp(score - sum);
        }
        out[cell] = norms ? weight * norms[c]! : weight;
      }
    }
    return out;
  }

  private valueNorms(head: number): Float32Array {
    const { keys, heads } = this.meta;
    const [kvHeads, , dim] = this.shape("v") as [number, number, number];
    if (!this.norms) {
      const v = this.tensor("v");
      this.norms = new Float32Array(kvHeads * keys);
      for (let i = 0; i < this.norms.length; i++) {
        let sum = 0;
        for (let d = 0; d < dim; d++) sum += v[i * dim + d]! ** 2;
        this.norms[i] = Math.sqrt(sum);
      }
    }
    const kvHead = Math.floor((head * kvHeads) / heads);
    return this.norms.subarray(kvHead * keys, (kvHead + 1) * keys);
  }

  parts(head: number, query: number, key: number): ScoreParts {
    const { queries, mechanism } = this.meta;
    const weight = this.rows(head, query, query + 1, key, key + 1, false)[0]!;
    const visible = this.visible(head, query, key);
    const base = {
      v: this.vector("v", head, key),
      visible,
      weight: Number.isNaN(weight) ? 0 : weight,
      mechanism,
    };
    if (mechanism === "dense") {
      return {
        ...base,
        q: [],
        k: [],
        products: [],
        additive: false,
        scale: null,
        similarity: 0,
        softcap: null,
        bias: 0,
        score: null,
        lse: null,
      };
    }
    const [q, k] = [this.vector("q", head, query)!, this.vector("k", head, key)!];
    const additive = this.has("additive");
    const w = this.tensor("additive");
    const products = q.map((x, d) => (additive ? w[d]! * Math.tanh(x + k[d]!) : x * k[d]!));
    const scale = additive || mechanism === "linear" ? null : this.packed.scale;
    const similarity = products.reduce((a, b) => a + b, 0) * (scale ?? 1);
    const { softcap } = this.packed;
    const bias = this.bias(head, query, key);
    const capped = softcap === null ? similarity : softcap * Math.tanh(similarity / softcap);
    const lse = this.tensor(mechanism === "linear" ? "normaliser" : "lse")[head * queries + query]!;
    return {
      ...base,
      q,
      k,
      products,
      additive,
      scale,
      similarity,
      softcap,
      bias,
      score: visible ? capped + bias : null,
      lse: Number.isFinite(lse) ? lse : null,
    };
  }

  /** A row taken apart, from the numbers of the file, as view/live.py has it. */
  machine(head: number, query: number, key: number): MachineRow {
    const parts = this.parts(head, query, key);
    const { keys, mechanism } = this.meta;
    const empty = { parts, keys: [], scores: [], visible: [], rest: null, values: null };
    if (mechanism !== "softmax") return empty;
    const weights = this.rows(head, query, query + 1, 0, keys, false);
    let kept = Array.from({ length: keys }, (_, i) => i);
    if (keys > MOST_KEYS) {
      const largest = [...kept].sort((a, b) => (weights[b] || 0) - (weights[a] || 0)).slice(0, MOST_KEYS - 1);
      kept = [...new Set([key, ...largest])].sort((a, b) => a - b);
    }
    const left = 1 - kept.reduce((sum, i) => sum + (weights[i] || 0), 0);
    const raw = (i: number) => {
      const { similarity, softcap, bias } = this.parts(head, query, i);
      return (softcap === null ? similarity : softcap * Math.tanh(similarity / softcap)) + bias;
    };
    return {
      parts,
      keys: kept,
      scores: kept.map(raw),
      visible: kept.map((i) => this.visible(head, query, i)),
      // What is left belongs to the keys not shown, or to a sink.
      rest: left > (kept.length < keys ? 1e-9 : 1e-5) ? parts.lse! + Math.log(left) : null,
      values: this.has("v") ? kept.map((i) => this.vector("v", head, i)!) : null,
      restValue: kept.length < keys && this.has("v") ? this.restValue(head, weights, new Set(kept)) : null,
      ...(this.has("x") ? this.fromModel(parts, kept, head, query, key) : {}),
    };
  }

  /** What the keys that are not shown give together. */
  private restValue(head: number, weights: Float32Array, kept: Set<number>): number[] {
    const sum = new Array<number>(this.shape("v")[2]!).fill(0);
    weights.forEach((weight, key) => {
      if (kept.has(key) || !(weight > 0)) return;
      this.vector("v", head, key)!.forEach((value, d) => {
        sum[d]! += weight * value;
      });
    });
    return sum;
  }

  /** What was kept of the model for this layer. The machine of other layers begins at the query. */
  private fromModel(
    parts: ScoreParts,
    kept: number[],
    head: number,
    query: number,
    key: number,
  ): Partial<MachineRow> {
    const wrote = this.packed.wrote?.[`${head}.${query}`];
    const push = wrote?.push && { ...wrote.push, byKey: kept.map((i) => wrote.push!.byKey[i]!) };
    const model = {
      x: this.vector("x", 0, query)!,
      xKey: this.vector(this.has("xKey") ? "xKey" : "x", 0, key)!,
      q: this.vector("qBefore", head, query) ?? parts.q,
      k: this.vector("kBefore", head, key) ?? parts.k,
      ...wrote,
      push,
    };
    return wrote
      ? { model }
      : { model, without: "What the head writes back was kept for the words of the tour alone." };
  }

  /** One vector of a tensor (head, position, dim) or (position, dim); null where there is no such tensor. */
  private vector(name: string, head: number, position: number): number[] | null {
    if (!this.has(name)) return null;
    const [positions, dim] = this.shape(name).slice(-2) as [number, number];
    const heads = this.shape(name).length === 3 ? this.shape(name)[0]! : 0;
    const at = (Math.floor((head * heads) / this.meta.heads) * positions + position) * dim;
    return Array.from(this.tensor(name).subarray(at, at + dim));
  }
}

/** Where nearly equal groups begin and end: the same division as `pooled` of trace_layers.py. */
export function groupEnds(first: number, last: number, n: number): number[] {
  const size = last - first;
  const count = Math.min(n, size);
  return Array.from({ length: count + 1 }, (_, i) => first + Math.floor((size * i) / count));
}

/** The largest weight of each group of cells, in strips with a pause between them so that the page stays alive. */
export async function pooled(
  layer: EmbeddedLayer,
  region: Region,
  pause: () => Promise<void>,
): Promise<Tile> {
  const rowEnds = groupEnds(region.r0, region.r1, region.nRow);
  const colEnds = groupEnds(region.c0, region.c1, region.nCol);
  const nRow = rowEnds.length - 1;
  const nCol = colEnds.length - 1;
  const width = region.c1 - region.c0;
  const values = new Float32Array(nRow * nCol).fill(NaN);
  const strip = Math.max(1, Math.floor(40_000 / Math.max(1, width)));
  for (let row = 0; row < nRow; row++) {
    for (let first = rowEnds[row]!; first < rowEnds[row + 1]!; first += strip) {
      const last = Math.min(rowEnds[row + 1]!, first + strip);
      const weights = layer.rows(region.head, first, last, region.c0, region.c1, region.valued);
      for (let r = 0; r < last - first; r++) {
        for (let col = 0; col < nCol; col++) {
          let top = values[row * nCol + col]!;
          for (let c = colEnds[col]! - region.c0; c < colEnds[col + 1]! - region.c0; c++) {
            const weight = weights[r * width + c]!;
            if (!(weight <= top) && !Number.isNaN(weight)) top = weight;
          }
          values[row * nCol + col] = top;
        }
      }
      await pause();
    }
  }
  return { nRow, nCol, values };
}
