// What is being looked at. All of it is in the address, so that a link opens the same view again.

import type { ScaleName, Theme } from "./colour";
import type { LinkCount } from "./lines";
import type { Viewport } from "./mapview";
import { type AtlasView, type PageView, VIEWS } from "./registry";
import type { Link } from "./types";

export type ViewName = AtlasView;
export type CompareName = "none" | "head" | "random" | "model" | "text" | "heads off" | "document";

/** How near: a sentence and its arcs, how one weight comes about, or everything. */
export type Altitude = PageView;

const LONG_TEXT = 300; // characters that an address still holds

export interface State {
  at: Altitude;
  scene: number | null; // of the tour
  model: string;
  text: string;
  ref: string; // what the server calls a text that is too long for an address
  target: string;
  layer: number;
  head: number;
  view: ViewName;
  scale: ScaleName;
  range: "own" | "one";
  valued: boolean;
  query: number | null;
  key: number | null;
  zoom: Viewport | null;
  off: [number, number][];
  cut: Link[]; // links that the model runs without
  compare: CompareName;
  other: string; // the other model or the other text
  layer2: number;
  head2: number;
  difference: boolean;
  more: [number, number][]; // further heads of the lines view
  words: boolean;
  noSpecial: boolean;
  chosen: number[]; // tokens of the lines view
  links: LinkCount;
  reading: "looks at" | "is looked at by";
  sort: string; // "layer", or a measure
  filter: string; // a label, or ""
  tint: "weights" | "effect"; // what the colours of the grid are
  doc: number; // of the documents in the file
  suggest: string[]; // a word of the text and another to try in its place
  write: number; // tokens the model writes; 0: it reads
  thumbs: "one" | "own"; // small pictures: one scale for all, or each its own
  present: boolean; // for a lecture: one thing, as large as the screen
  theme: Theme | "";
}

export const START: State = {
  at: "story",
  scene: null,
  model: "",
  text: "",
  ref: "",
  target: "",
  layer: 0,
  head: 0,
  view: "map",
  scale: "sqrt",
  range: "own",
  valued: false,
  query: null,
  key: null,
  zoom: null,
  off: [],
  cut: [],
  compare: "none",
  other: "",
  layer2: 0,
  head2: 1,
  difference: false,
  more: [],
  words: false,
  noSpecial: false,
  chosen: [],
  links: "auto",
  reading: "looks at",
  sort: "layer",
  filter: "",
  tint: "weights",
  doc: 0,
  suggest: [],
  write: 0,
  thumbs: "one",
  present: false,
  theme: "",
};

/** Short names for the address; values are written as JSON where they are no plain word. */
export function toHash(state: State): string {
  const params = new URLSearchParams();
  const long = state.ref !== "" && state.text.length > LONG_TEXT; // then the reference stands for it
  for (const [name, value] of Object.entries(state)) {
    if (name === (long ? "text" : "ref")) continue;
    const usual = START[name as keyof State];
    if (JSON.stringify(value) === JSON.stringify(usual)) continue;
    const shown = name === "zoom" && value ? rounded(value as Viewport) : value;
    params.set(name, typeof shown === "string" ? shown : JSON.stringify(shown));
  }
  return params.toString();
}

const rounded = (view: Viewport) => ({
  x: +view.x.toFixed(2),
  y: +view.y.toFixed(2),
  px: +view.px.toFixed(4),
});

/** What an address says; anything it should not say is left out. */
export function fromHash(hash: string): Partial<State> {
  const out: Record<string, unknown> = {};
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!Object.hasOwn(START, name)) continue;
    const usual = START[name as keyof State];
    if (typeof usual === "string") {
      if (allowed(name, text)) out[name] = text;
      continue;
    }
    try {
      const value: unknown = JSON.parse(text);
      if (fits(name, value)) out[name] = value;
    } catch {
      // Not ours: the usual value stays.
    }
  }
  return out as Partial<State>;
}

/** The names of the views of one level: of the whole page, or of a head in the atlas. */
export const viewsOf = (level: "page" | "atlas"): string[] =>
  Object.keys(VIEWS).filter((name) => VIEWS[name as PageView].level === level);

/** What these views are called on their buttons. */
export const titlesOf = <L extends "page" | "atlas">(level: L) =>
  Object.fromEntries(viewsOf(level).map((name) => [name, VIEWS[name as PageView].title])) as Record<
    L extends "page" ? PageView : AtlasView,
    string
  >;

const WORDS: Record<string, string[]> = {
  at: viewsOf("page"),
  view: viewsOf("atlas"),
  scale: ["linear", "sqrt", "log"],
  range: ["own", "one"],
  compare: ["none", "head", "random", "model", "text", "heads off", "document"],
  reading: ["looks at", "is looked at by"],
  tint: ["weights", "effect"],
  thumbs: ["one", "own"],
  links: ["auto", "all", "3", "1"],
  theme: ["light", "dark", ""],
};

const allowed = (name: string, text: string) => !WORDS[name] || WORDS[name]!.includes(text);
const whole = (value: unknown) => Number.isInteger(value) && (value as number) >= 0;

function fits(name: string, value: unknown): boolean {
  if (name === "off" || name === "more")
    return Array.isArray(value) && value.every((p) => Array.isArray(p) && p.length === 2 && p.every(whole));
  if (name === "cut")
    return Array.isArray(value) && value.every((p) => Array.isArray(p) && p.length === 4 && p.every(whole));
  if (name === "chosen") return Array.isArray(value) && value.every(whole);
  if (name === "suggest") return Array.isArray(value) && value.every((word) => typeof word === "string");
  if (name === "zoom")
    return (
      typeof value === "object" &&
      value !== null &&
      ["x", "y", "px"].every((k) => Number.isFinite((value as Record<string, number>)[k]))
    );
  if (typeof START[name as keyof State] === "boolean") return typeof value === "boolean";
  return whole(value);
}
