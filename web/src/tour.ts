// The tour: scenes with captions, each of them a state of the page. And the words it explains.

import { fill, h } from "./dom";
import { LABELS } from "./registry";
import type { Scene } from "./types";
import { label } from "./words";

export const GLOSSARY: Record<string, string> = {
  token: "A piece of text that the model reads as one: a word, part of one, or a sign.",
  query: "The token that looks. It asks with a vector of numbers made from what it is.",
  key: "A token that is looked at. It answers with a vector of its own; where query and key fit, the score is high.",
  value:
    "What a token gives to those that look at it: a third vector. Values are added up, each times its weight.",
  weight: "How much a query takes from a key: 0 is nothing, 1 is all. The weights of one query sum to 1.",
  head: "One of several attentions that run beside each other, each with its own queries, keys and values. Head 3.1 is head 1 of layer 3, counted from 0.",
  layer:
    "One step of the model. Each has several heads, and works on what the steps before made of the text.",
  score: "Query times key: one number for how well they fit, before softmax.",
  softmax:
    "Turns the scores of a row into weights: exp of each, divided by their sum. All are positive and sum to 1.",
  mask: "What hides keys from a query, such as the future from a model that writes. A hidden key has weight 0.",
  sink: "A token that takes the weight of heads with nothing to find: often the first one, or [SEP].",
  map: "A head as a picture: a row for each query, a column for each key, dark where the weight is large.",
  induction:
    "Looking at what followed an earlier copy of the same token: the way a model repeats what it has seen.",
};

/** What a head is called, in words for somebody who reads the name for the first time. */
export const HEAD_NAMES: Record<string, string> = Object.fromEntries(
  Object.entries(LABELS).map(([name, { sentence }]) => [name, sentence]),
);

const KEYS: [string, string][] = [
  ["s m a", "story, machine, atlas"],
  ["← →", "back and on in the tour (in Story)"],
  ["1 2 3", "map, lines, text (in Atlas)"],
  ["arrows", "in the grid the next head, on the map the next cell, in the text the next word"],
  ["+ − 0", "on the map: closer, farther, all"],
  ["x", "switch the chosen head off or on"],
  ["p", "large letters, for a lecture"],
  ["?", "this list"],
];

export class Tour {
  readonly element = h("section", { class: "tour", "aria-label": "Tour" });
  readonly help = h("dialog", { class: "help", "aria-label": "Words and keys" });
  private readonly seen = new Set<string>(); // a word is explained where it first appears
  private shown = "";

  constructor(private readonly go: (scene: number | null) => void) {
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

  show(scenes: Scene[], at: number | null): void {
    const key = JSON.stringify([at, scenes]);
    if (key === this.shown) return;
    this.shown = key;
    const scene = at === null ? undefined : scenes[at];
    this.element.hidden = !scenes.length;
    if (!scene) {
      fill(
        this.element,
        scenes.length > 0 &&
          h(
            "button",
            { type: "button", class: "primary", onclick: () => this.go(0) },
            `Tour in ${scenes.length} views`,
          ),
      );
      return;
    }
    const explained: string[] = [];
    const parts = scene.says.map((part) => {
      if (typeof part === "string") return part;
      if ("word" in part) return h("b", { class: "saidword" }, label(part.word));
      if (!this.seen.has(part.term)) explained.push(part.term);
      this.seen.add(part.term);
      const open = () => this.open();
      return h(
        "button",
        { type: "button", class: "term", title: GLOSSARY[part.term], onclick: open },
        part.term,
      );
    });
    const step = (by: number, name: string, sign: string) =>
      h(
        "button",
        {
          type: "button",
          "aria-label": name,
          class: by > 0 ? "primary" : "",
          disabled: !scenes[at! + by],
          onclick: () => this.go(at! + by),
        },
        sign,
      );
    fill(
      this.element,
      h(
        "div",
        { class: "said", role: "status" },
        h("p", {}, h("b", { class: "scenetitle" }, scene.title), " ", parts),
        explained.length > 0 &&
          h(
            "dl",
            { class: "explained" },
            explained.map((term) => h("div", {}, h("dt", {}, term), h("dd", {}, GLOSSARY[term] ?? ""))),
          ),
      ),
      h(
        "nav",
        { class: "steps", "aria-label": "scenes" },
        step(-1, "back", "←"),
        h("span", { class: "num" }, `${at! + 1} / ${scenes.length}`),
        step(1, "on", "→"),
        h("button", { type: "button", "aria-label": "end the tour", onclick: () => this.go(null) }, "×"),
      ),
    );
  }
}
