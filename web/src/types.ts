// What the Python side says about a trace: written by view/document.py, read here and nowhere changed.

export type Plain = string | number | boolean | null;
/** (layer, head, query, key): one weight. */
export type Link = [number, number, number, number];

export type Side = "tokens" | "source" | "written" | null;

export interface LayerMeta {
  name: string; // its stable text, as files have it
  label: string; // what a person calls it: "layer 23"
  stack: string; // the stack of layers it stands in
  index: number | null; // its place there
  kind: "self" | "cross";
  mechanism: "softmax" | "linear" | "dense";
  heads: number;
  queries: number;
  keys: number;
  rows: Side; // whose tokens label the rows; null: positions
  cols: Side;
  values: boolean; // whether value vectors are there
  kvHeads: number; // query heads share them in groups
  masked: boolean; // whether some keys are masked
  bias: boolean; // whether scores get a bias of their positions
  sink: boolean; // whether a learned score takes part in the softmax
  recipe: Recipe | null; // what the model does around attention; null where only its trace is known
}

/** How a layer of a model we know makes queries and keys, and what becomes of a head's output. */
export interface Recipe {
  rotary: boolean;
  qkNorm: boolean;
  bias: boolean;
  gate: boolean;
  writesAsIs: boolean; // a head's output is added to x through its output matrix alone
}

export interface HeadLabel {
  label: string;
  rule: string;
  share: number | null; // of the rows of this text that it speaks of
}

export interface HeadFacts {
  measures: Record<
    string,
    { what: string; values: (number | null)[][]; chance: (number | null)[]; standsOut: boolean[][] }
  >;
  labels: (HeadLabel | null)[][]; // [layer][head]
  scenes: Scene[]; // of the tour; none in a long text
  openings: { title: string; text: string }[]; // texts that show something
}

export interface OneHead {
  measures: Record<string, { what: string; value: number | null; chance: number | null }>;
  label: HeadLabel | null;
}

/** Where one head looks most from a word. */
export interface WordLink {
  layer: number;
  head: number;
  key: number;
  weight: number;
  even: number; // the weight if it looked at every visible key alike
}

/** A view with a caption: one stop of the tour. */
export interface Scene {
  title: string;
  says: (string | { word: string } | { term: string })[];
  state: Record<string, unknown>;
  guess?: Guess | null; // asked before the caption is told
  act?: Act | null; // what the reader can do here
  points?: "link" | "prediction" | "heads" | "map" | null; // what the caption speaks of; the rest dims
}

/** A question whose answer is a token of the text; what is asked about is hidden until it is answered. */
export interface Guess {
  asks: (string | { word: string })[];
  answers: number[]; // positions of keys that are right
}

/** A change of the text, or of the model, that one button makes. */
export type Act =
  | { kind: "word"; from: string; to: string }
  | { kind: "text"; text: string; says: string }
  | { kind: "knock out"; says: string };

export interface DocMeta {
  id: string;
  title: string;
  model: Record<string, Plain>;
  modelKey: string; // what a request for the same model names
  text: string;
  target: string | null;
  tokens: string[];
  source: string[];
  written: string[]; // what an encoder-decoder writes after reading each token: its rows of cross-attention
  layers: LayerMeta[];
  notices: string[];
  checks: string;
  off: [number, number][];
  cut: Link[];
  ref: string; // what the server calls this text
  prediction: PredictionAnswer | null; // kept in a saved page
  kind: "encoder" | "decoder" | "encoder-decoder" | "unknown";
  predicts: "next" | "masked" | "vector" | null;
  generated: { start: number; steps: Prediction[][] } | null;
  precision: string; // how exactly the numbers are kept
  grid: Grid | null; // of a vision model
}

/** Where in its image a vision model's positions are: patches row by row, after some special tokens. */
export interface Grid {
  rows: number;
  columns: number;
  before: number;
  image: string | null; // a data URL
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
  nRow: number; // groups of nearly equal size, each shown by its largest weight
  nCol: number;
  valued: boolean; // weight times the length of the value vector
}

/** Row-major numbers; NaN where every cell of a group is hidden. */
export interface Tile {
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

/** A row taken apart. Softmax over visible scores and `rest` (the keys left out of a long row) gives its weights. */
export interface MachineRow {
  parts: ScoreParts;
  keys: number[]; // none: this layer has no softmax
  scores: number[];
  visible: boolean[];
  rest: number | null;
  values: number[][] | null;
  restValue?: number[] | null; // what the keys left out give together: the sum of weight times value
  model?: ModelPart | null;
  without?: string; // why there is none
}

/** What a head's values do to the scores of some next tokens. */
export interface Push {
  tokens: string[];
  byKey: number[][]; // at weight 1
  rest?: number[]; // of the keys left out, at their own weights
}

/** What only the model, or a file that kept it, can say of a link. */
export interface ModelPart {
  x: number[];
  xKey: number[];
  q: number[]; // before positions turn it
  k: number[];
  added?: number; // length of what the head adds to x
  length?: number; // length of x
  push?: Push | null;
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
  tile(region: Region, signal?: AbortSignal): Promise<Tile>;
  /** Pictures of whole heads, of at most `cells` rows and columns. */
  small(heads: [number, number][], cells: number, signal?: AbortSignal): Promise<Tile[]>;
  parts(layer: number, head: number, query: number, key: number): Promise<ScoreParts>;
  machine(layer: number, head: number, query: number, key: number): Promise<MachineRow>;
  pairs(layer: number, head: number): Promise<Pair[]>;
  facts(): Promise<HeadFacts>;
  /** Measures and label of one head, which a long text has long before those of all. */
  headFacts(layer: number, head: number): Promise<OneHead>;
  /** The strongest links of one query over all heads, those that say most first. */
  links(query: number, layer: number): Promise<WordLink[]>;
}

export interface TraceRequest {
  model: string;
  text: string;
  ref?: string; // of a text that the server keeps
  target?: string | null;
  off?: [number, number][];
  cut?: Link[];
  maxNew?: number;
}

export interface Progress {
  done: number;
  total: number;
}

/** What each head does to the prediction, and what that number is. */
export interface Effects {
  what: string;
  values: (number | null)[][];
}

export interface Search {
  heads: { layer: number; head: number; share: number }[];
  pairs: number;
  offset: number; // in words: the fixed distance that is right most often
  baseline: number; // how often that is
  chance: number;
}

export interface PredictionAnswer {
  kind: "next" | "masked" | "vector";
  position: number;
  before: Prediction[]; // with all heads
  after: Prediction[] | null; // with the heads switched off, in the same order as `before`
  now: { token: string; p: number; was: number }[] | null; // the likeliest after what was changed
  moved: number | null; // 1 - cosine of the sentence vectors
}

/** What a prediction rests on: by how much its log-probability falls without each part. */
export interface WhyAnswer {
  token: string;
  p: number;
  position: number;
  sentence: string; // the strongest head
  findings: WhyFinding[];
  note: string;
}

export interface WhyFinding {
  kind: "head" | "edge" | "position";
  layer: number | null;
  head: number | null;
  query: number | null;
  key: number | null;
  weight: number | null;
  effect: number; // of the log-probability when the part is switched off
  p: number; // of the token without the part
  standsOut: boolean;
}

export interface SavedSize {
  bytes: number;
  most: number; // above, a page is not written
}

/** What needs a running model: the server or the notebook's kernel. */
export interface Backend {
  models(): Promise<ModelChoice[]>;
  /** Run the model; `maxNew` lets it write. `told` hears of its layers as they are done. */
  trace(
    request: TraceRequest,
    told?: (progress: Progress) => void,
    signal?: AbortSignal,
  ): Promise<TileSource>;
  predict(doc: DocMeta, position: number | null): Promise<PredictionAnswer>;
  gradient(
    doc: DocMeta,
    at: { layer: number; head: number; query: number; key: number; position: number },
  ): Promise<{ gradient: number; value: number; token: string }>;
  open(name: string, bytes: ArrayBuffer): Promise<TileSource>;
  effects(doc: DocMeta): Promise<Effects>;
  search(doc: DocMeta, lines: string[]): Promise<Search>;
  /** What moved a prediction: the parts whose absence was run, against chance. */
  why(doc: DocMeta, position: number | null): Promise<WhyAnswer>;
  /** How large a saved page of these traces would be. */
  savedSize(docs: string[]): Promise<SavedSize>;
  save(path: (Scene & { doc: string })[]): Promise<ArrayBuffer>;
  onConnection(listener: (alive: boolean) => void): void;
}

export const aborted = (error: unknown): boolean =>
  error instanceof DOMException && error.name === "AbortError";
