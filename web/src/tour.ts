// The tour: scenes with captions, each of them a state of the page. And the words it explains.

import { fill, h } from "./dom";
import { LABELS, VIEWS } from "./registry";
import type { Act, Scene } from "./types";
import { label } from "./words";

export const GLOSSARY: Record<string, string> = {
  token: "A piece of text that the model reads as one: a word, part of a word, or a sign.",
  query: "The token that looks. It asks with a vector of numbers made from what it is.",
  key: "A token that is looked at. It answers with a vector of its own; where query and key fit, the score is high.",
  value:
    "What a token gives to those that look at it: a third vector. Values are added up, each times its weight.",
  weight:
    "How much a query takes from a key: 0 is nothing, 1 is everything. The weights of one query sum to 1.",
  head: "Attention lets each word gather from other words. A model has many such readers, called heads, that work side by side, each with its own queries, keys and values. Head 3.1 is head 1 of layer 3, counted from 0.",
  layer:
    "One step of the model. Each has several heads, and works on what the steps before made of the text.",
  score: "Query times key: one number for how well they fit, before softmax.",
  softmax:
    "Turns the scores of a row into weights: exp of each, divided by their sum. All are positive and sum to 1.",
  mask: "What keeps keys from a query, such as the future from a model that writes. A masked key has weight 0.",
  sink: "A token that takes the weight of heads that find nothing: often the first one, or [SEP].",
  map: "A head as a picture: a row for each query, a column for each key. The darker, the larger the weight.",
  induction:
    "Looking at what followed an earlier copy of the same token: the way a model repeats what it has seen.",
  "switched off": "A head that is switched off gives nothing, and the model is run without it.",
};

/** What a head is called, in words for somebody who reads the name for the first time. */
export const HEAD_NAMES: Record<string, string> = Object.fromEntries(
  Object.entries(LABELS)
    .filter(([name]) => name !== "none")
    .map(([name, { sentence }]) => [name, sentence]),
);

const views = Object.values(VIEWS);
const KEYS: [string, string][] = [
  ...views.map(({ key, title, level }): [string, string] => [
    key,
    level === "page" ? title : `${title} (in Atlas)`,
  ]),
  ["← →", "the tour, back and on; without a tour the next head (in Atlas)"],
  ["Space, PageDown, PageUp", "the tour, as a presenter's clicker sends them"],
  ["arrows", "in the grid the next head, on the map the next cell, in the text the next word"],
  ["+ − 0", "on the map: closer, farther, all"],
  ["x", "switch the chosen head off or on (in Atlas)"],
  ["p", "present: one thing, as large as the screen; Esc ends it"],
  ["?", "this list"],
];

/** What the tour asks of the page. */
interface TourEvents {
  go(scene: number | null): void;
  act(act: Act): void;
  /** Whether what a scene asks about is hidden until it is answered. */
  hide(hidden: boolean): void;
  openings(): { title: string; open: () => void }[];
}

export class Tour {
  readonly element = h("section", { class: "tour", "aria-label": "Tour" });
  readonly help = h("dialog", { class: "help", "aria-label": "Words and keys" });
  private readonly answered = new Set<number>(); // scenes whose question was answered
  private shown = "";
  private scenes: Scene[] = [];
  private at: number | null = null;
  private guessed: number | null = null;

  constructor(private readonly on: TourEvents) {
    const list = (said: Record<string, string>) =>
      h(
        "dl",
        {},
        Object.entries(said).map(([term, what]) => [h("dt", {}, term), h("dd", {}, what)]),
      );
    const keys = KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]);
    fill(
      this.help,
      h(
        "button",
        { type: "button", class: "closing", "aria-label": "close", onclick: () => this.help.close() },
        "×",
      ),
      h("h2", {}, "Words"),
      list(GLOSSARY),
      h("h2", {}, "What heads are called"),
      list(HEAD_NAMES),
      h("h2", {}, "Keys"),
      h("dl", {}, keys),
    );
  }

  open(): void {
    if (!this.help.open) this.help.showModal();
  }

  /** The scene that asks now, before it tells; null where nothing is asked. */
  get asking(): Scene | null {
    const scene = this.at === null ? undefined : this.scenes[this.at];
    return scene?.guess && !this.answered.has(this.at!) ? scene : null;
  }

  /** A step forward in a scene that asks tells the answer first. True where that was done. */
  reveal(step: number): boolean {
    if (step < 0 || !this.asking) return false;
    this.answer(null);
    return true;
  }

  /** Somebody guessed a token of the text; null: they want to be told. */
  answer(token: number | null): void {
    if (!this.asking) return;
    this.guessed = token;
    this.answered.add(this.at!);
    this.shown = "";
    this.show(this.scenes, this.at, this.key);
    this.on.hide(false);
  }

  private key = "";

  /** `of` is the trace that the scenes are of: another one has not been asked about. */
  show(scenes: Scene[], at: number | null, of: string): void {
    if (of !== this.key) {
      this.key = of;
      this.answered.clear();
    }
    if (at !== this.at) this.guessed = null;
    this.scenes = scenes;
    this.at = at;
    const key = JSON.stringify([at, scenes, of]);
    if (key === this.shown) return;
    this.shown = key;
    const scene = at === null ? undefined : scenes[at];
    const openings = this.on.openings();
    this.element.hidden = !scenes.length && !openings.length;
    if (!scene || at === null) {
      const tour = h(
        "button",
        { type: "button", class: "primary", onclick: () => this.on.go(0) },
        "Tour of this text",
      );
      fill(this.element, scenes.length > 0 && tour, this.menu());
      return;
    }
    const asks = this.asking !== null;
    const step = (by: number, name: string, sign: string) =>
      h(
        "button",
        {
          type: "button",
          "aria-label": name,
          class: by > 0 ? "primary" : "",
          disabled: !scenes[at + by] && !(by > 0 && asks),
          onclick: () => (this.reveal(by) ? undefined : this.on.go(at + by)),
        },
        sign,
      );
    fill(
      this.element,
      h("div", { class: "said", role: "status" }, asks ? this.question(scene) : this.told(scene, at)),
      at === scenes.length - 1 && !asks && this.menu(),
      h(
        "nav",
        { class: "steps", "aria-label": "scenes" },
        step(-1, "back", "←"),
        h("span", { class: "num" }, `${at + 1} / ${scenes.length}`),
        step(1, "on", "→"),
        h("button", { type: "button", "aria-label": "end the tour", onclick: () => this.on.go(null) }, "×"),
      ),
    );
  }

  private menu(): HTMLElement | null {
    const openings = this.on.openings();
    if (!openings.length) return null;
    const buttons = openings.map(({ title, open }) => h("button", { type: "button", onclick: open }, title));
    return h("div", { class: "openings", role: "group", "aria-label": "openings" }, buttons);
  }

  private question(scene: Scene): HTMLElement {
    const parts = scene.guess!.asks.map((part) =>
      typeof part === "string" ? part : h("b", { class: "saidword" }, h("bdi", {}, label(part.word))),
    );
    return h(
      "p",
      {},
      h("b", { class: "scenetitle" }, scene.title),
      " ",
      parts,
      " ",
      h("button", { type: "button", class: "tell", onclick: () => this.answer(null) }, "Show me"),
    );
  }

  private told(scene: Scene, at: number): HTMLElement[] {
    const parts = scene.says.map((part) => {
      if (typeof part === "string") return part;
      if ("word" in part) return h("b", { class: "saidword" }, h("bdi", {}, label(part.word)));
      const open = () => this.open();
      return h(
        "button",
        { type: "button", class: "term", title: GLOSSARY[part.term], onclick: open },
        part.term,
      );
    });
    const right = this.guessed !== null && scene.guess?.answers.includes(this.guessed);
    const reply = this.guessed === null ? "" : right ? "That is it. " : "Not that one. ";
    const { act } = scene;
    const explained = this.explainedIn(at);
    return [
      h(
        "p",
        {},
        h("b", { class: "scenetitle" }, scene.title),
        " ",
        reply && h("b", { class: right ? "isright" : "iswrong" }, reply),
        parts,
        " ",
        act && h("button", { type: "button", class: "act", onclick: () => this.on.act(act) }, actName(act)),
      ),
      ...(explained.length
        ? [
            h(
              "dl",
              { class: "explained" },
              explained.map((term) => h("div", {}, h("dt", {}, term), h("dd", {}, GLOSSARY[term] ?? ""))),
            ),
          ]
        : []),
    ];
  }

  /** Words that a scene is the first to use: they are explained there, however one came to it. */
  private explainedIn(at: number): string[] {
    const terms = (scene: Scene) =>
      scene.says.flatMap((part) => (typeof part === "object" && "term" in part ? [part.term] : []));
    const before = new Set(this.scenes.slice(0, at).flatMap(terms));
    return [...new Set(terms(this.scenes[at]!))].filter((term) => !before.has(term));
  }
}

const actName = (act: Act): string => (act.kind === "word" ? `Change ${act.from} to ${act.to}` : act.says);
