// What the Python side says about a trace: written by view/document.py, read here and nowhere changed.

export type Plain = string | number | boolean | null;
export type Side = "tokens" | "source" | null;

export interface LayerMeta {
  name: string;
  kind: "self" | "cross";
  mechanism: "softmax" | "linear" | "dense";
  heads: number;
  queries: number;
  keys: number;
  rows: Side; // whose tokens label the rows; null: positions
  cols: Side;
  values: boolean; // whether value vectors are there
}

export interface HeadLabel {
  label: string;
  rule: string;
}

export interface HeadFacts {
  measures: Record<string, { what: string; values: (number | null)[][]; chance: (number | null)[] }>;
  labels: (HeadLabel | null)[][]; // [layer][head]
}

export interface DocMeta {
  id: string;
  title: string;
  model: Record<string, Plain>;
  modelKey: string; // what a request for the same model names
  text: string;
  target: string | null;
  tokens: string[];
  source: string[];
  layers: LayerMeta[];
  notices: string[];
  checks: string;
  off: [number, number][];
  kind: "encoder" | "decoder" | "encoder-decoder" | "unknown";
  predicts: "next" | "masked" | "vector" | null;
  generated: { start: number; steps: Prediction[][] } | null;
  precision: string; // how exactly the numbers are kept
}

export interface Prediction {
  token: string;
  p: number;
}

export interface Region {
  layer: number;
  head: number;
  r0: number;
  r1: number;
  c0: number;
  c1: number;
  nRow: number; // blocks of nearly equal size, each shown by its largest weight
  nCol: number;
  valued: boolean; // weight times the length of the value vector
}

/** Row-major numbers; NaN where every cell of a block is hidden. */
export interface Block {
  nRow: number;
  nCol: number;
  values: Float32Array;
}

export interface ScoreParts {
  q: number[];
  k: number[];
  v: number[] | null;
  products: number[];
  additive: boolean;
  scale: number | null;
  similarity: number;
  softcap: number | null;
  bias: number;
  visible: boolean;
  score: number | null; // null: minus infinity
  lse: number | null;
  weight: number;
  mechanism: "softmax" | "linear" | "dense";
}

export interface Pair {
  query: number;
  key: number;
  weight: number;
}

export interface ModelChoice {
  key: string;
  name: string;
  what: string;
  present: boolean;
  command: string | null; // how to get it
  kind: DocMeta["kind"];
  random: boolean;
  given: boolean; // a trace, not a model: it has a text of its own
}

/** Anything that can be drawn: three kinds answer, so that no view knows where its numbers come from. */
export interface TileSource {
  readonly meta: DocMeta;
  block(region: Region, signal?: AbortSignal): Promise<Block>;
  parts(layer: number, head: number, query: number, key: number): Promise<ScoreParts>;
  pairs(layer: number, head: number): Promise<Pair[]>;
  facts(): Promise<HeadFacts>;
}

export interface TraceRequest {
  model: string;
  text: string;
  target?: string | null;
  off?: [number, number][];
}

export interface PredictionAnswer {
  kind: "next" | "masked" | "vector";
  position: number;
  before: Prediction[]; // with all heads
  after: Prediction[] | null; // with the heads switched off, in the same order as `before`
  moved: number | null; // 1 - cosine of the sentence vectors
}

/** What needs a running model: the server or the notebook's kernel. */
export interface Backend {
  models(): Promise<ModelChoice[]>;
  trace(request: TraceRequest): Promise<TileSource>;
  generate(request: TraceRequest & { maxNew: number }): Promise<TileSource>;
  predict(doc: DocMeta, position: number | null, mask: boolean): Promise<PredictionAnswer>;
  gradient(
    doc: DocMeta,
    at: { layer: number; head: number; query: number; key: number; position: number },
  ): Promise<{ gradient: number; value: number; token: string }>;
  open(name: string, bytes: ArrayBuffer): Promise<TileSource>;
  onConnection(listener: (alive: boolean) => void): void;
}

export const aborted = (error: unknown): boolean =>
  error instanceof DOMException && error.name === "AbortError";
