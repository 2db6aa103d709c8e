// Text: the sentence itself, shaded by what one token looks at, or by who looks at it. For a vision model that is
// its picture, lit where a patch looks.

import { type Colouring, css, inkOn, share } from "./colour";
import { choice, fill, h, number } from "./dom";
import type { Grid, TileSource } from "./types";
import { characters, isSpecial, label, spelling } from "./words";

/** The grid of patches, where the rows and columns of a layer are its positions. */
export function gridOf(source: TileSource, layer: number): Grid | null {
  const { rows, cols } = source.meta.layers[layer]!;
  return rows === "tokens" && cols === "tokens" ? source.meta.grid : null;
}

export class TextView {
  readonly element = h("div", { class: "textview" });
  private spans: HTMLElement[] = [];
  private ticket = 0;
  private marked = ""; // what was scrolled to
  private readonly rows = new Map<string, Promise<Float32Array>>();

  constructor(
    private readonly pick: (index: number) => void,
    private readonly error: (error: unknown) => void,
    private readonly setReading: (reading: "looks at" | "is looked at by") => void,
  ) {}

  show(
    source: TileSource,
    layer: number,
    head: number,
    valued: boolean,
    rowTokens: string[],
    colTokens: string[],
    chosen: number | null,
    marked: number | null, // the other end of the chosen link
    reading: "looks at" | "is looked at by",
    colouring: Colouring,
  ): void {
    this.rows.clear();
    const meta = source.meta.layers[layer]!;
    const cross = meta.rows !== meta.cols;
    const looking = reading === "looks at";
    const grid = gridOf(source, layer);
    const inPicture = (i: number) =>
      grid !== null && i >= grid.before && i < grid.before + grid.rows * grid.columns;
    const actors = looking ? rowTokens : colTokens; // hovered
    const shaded = looking ? colTokens : rowTokens;
    const ask = (index: number): Promise<Float32Array> => {
      const region = looking
        ? { r0: index, r1: index + 1, c0: 0, c1: meta.keys, nRow: 1, nCol: meta.keys }
        : { r0: 0, r1: meta.queries, c0: index, c1: index + 1, nRow: meta.queries, nCol: 1 };
      const key = String(index);
      let found = this.rows.get(key);
      if (!found) {
        found = source.tile({ layer, head, valued, ...region }).then((tile) => tile.values);
        this.rows.set(key, found);
      }
      return found;
    };
    const caption = h("p", { class: "quiet caption", "aria-live": "polite" });
    const shade = async (index: number | null) => {
      const ticket = ++this.ticket;
      if (index === null) {
        for (const span of this.spans) {
          span.style.backgroundColor = "";
          span.style.color = "";
          span.title = "";
          span.classList.remove("hidden");
        }
        caption.textContent = grid ? "Hover or choose a patch." : "Hover or choose a token.";
        return;
      }
      try {
        const values = await ask(index);
        if (ticket !== this.ticket) return;
        let top = 1e-9;
        for (const v of values) if (v > top) top = v;
        const how = { ...colouring, top, diverging: false };
        this.spans.forEach((span, i) => {
          const value = values[i]!;
          const hidden = Number.isNaN(value);
          span.classList.toggle("hidden", hidden);
          span.style.backgroundColor = hidden
            ? ""
            : inPicture(i)
              ? `rgba(8, 10, 18, ${(0.78 * (1 - share(value, how))).toFixed(3)})`
              : css(value, how);
          span.style.color = hidden ? "" : inkOn(value, how);
          span.title = hidden ? "masked: not visible to this query" : number(value);
          span.dataset["weight"] = String(value);
        });
        caption.textContent = looking
          ? `“${label(actors[index]!)}” (${index}) looks at: strongest is ${number(top)}.`
          : `“${label(actors[index]!)}” (${index}) is looked at by: strongest is ${number(top)}.`;
      } catch (error) {
        this.error(error);
      }
    };
    const parted = ["pieces", "plain"].includes(spelling(shaded)); // spaces are not in the tokens
    // One word is reached by Tab, the others from it by arrows: a long text has thousands.
    const move = (event: KeyboardEvent, index: number) => {
      const line = inPicture(index) ? grid!.columns : 1;
      const step = { ArrowRight: 1, ArrowDown: line, ArrowLeft: -1, ArrowUp: -line }[event.key];
      const words = [
        ...(event.currentTarget as HTMLElement).closest(".running")!.querySelectorAll<HTMLElement>(".word"),
      ];
      if (step !== undefined) words[index + step]?.focus();
      else if (event.key === "Enter" || event.key === " ") this.pick(index);
      else return;
      event.preventDefault();
    };
    const spelled = (tokens: string[]) =>
      characters(tokens).flatMap(({ text, count }) => [
        text,
        ...Array.from({ length: count - 1 }, () => "·"), // further parts of one character
      ]);
    const line = (tokens: string[], act: boolean, name: string) => {
      const pieces = spelled(tokens).map((token, i) => {
        const joined = token.startsWith("##");
        const space = parted && i > 0 && !joined ? " " : "";
        const span = h(
          "span",
          {
            class: `word${isSpecial(token) ? " special" : ""}${joined ? " joined" : ""}${act && i === chosen ? " chosen" : ""}${i === marked ? " marked" : ""}`,
            "data-index": i,
            ...(act
              ? {
                  role: "button",
                  tabIndex: i === (chosen ?? 0) ? 0 : -1,
                  "aria-label": inPicture(i) ? `patch ${token}` : `${label(token)}, ${i}`,
                  "aria-pressed": String(i === chosen),
                }
              : {}),
          },
          inPicture(i) ? "" : joined ? token.slice(2) : token.replace(/^▁/, " ").replaceAll("␣", " "),
        );
        if (act) {
          span.addEventListener("pointerenter", () => void shade(i));
          span.addEventListener("pointerleave", () => void shade(chosen));
          span.addEventListener("focus", () => void shade(i));
          span.addEventListener("blur", () => void shade(chosen));
          span.addEventListener("click", () => this.pick(i));
          span.addEventListener("keydown", (event) => move(event, i));
        }
        return [space, span];
      });
      if (!grid) return h("p", { class: "running", role: "group", "aria-label": name }, pieces);
      const spans = pieces.flat().filter((piece) => piece instanceof HTMLElement);
      const last = grid.before + grid.rows * grid.columns;
      const patches = h("div", { class: "patches" }, spans.slice(grid.before, last));
      patches.style.setProperty("--columns", String(grid.columns));
      const image = grid.image ? h("img", { src: grid.image, alt: "what the model saw" }) : null;
      const picture = h("div", { class: "picture" }, image, patches);
      picture.style.setProperty("--ratio", `${grid.columns} / ${grid.rows}`);
      // In the order of the positions, in which the spans below are counted.
      const inside = [h("p", {}, spans.slice(0, grid.before)), picture, h("p", {}, spans.slice(last))];
      return h("div", { class: "running", role: "group", "aria-label": name }, inside);
    };
    const below = line(shaded, !cross, looking ? "keys" : "queries");
    this.spans = [...below.querySelectorAll<HTMLElement>(".word")];
    fill(
      this.element,
      h(
        "div",
        { class: "bar tool" },
        choice(
          "reading",
          { "looks at": "what a token looks at", "is looked at by": "who looks at a token" },
          reading,
          this.setReading,
        ),
      ),
      cross && h("p", { class: "quiet" }, looking ? "Queries: hover one." : "Keys: hover one."),
      cross && line(actors, true, "choose"),
      cross && h("p", { class: "quiet" }, looking ? "Keys, shaded:" : "Queries, shaded:"),
      below,
      caption,
    );
    void shade(chosen);
    const shown = `${layer}/${head}/${chosen}`;
    if (shown !== this.marked) this.element.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
    this.marked = shown;
  }
}
