// Why a model said what it said: parts of it switched off one at a time, and what that did, against chance.

import type { PageContext } from "./context";
import { fill, h, number, percent } from "./dom";
import { sideTokens } from "./stage";
import type { TileSource, WhyAnswer, WhyFinding } from "./types";
import { label, labels, name } from "./words";

type Needs = Pick<PageContext, "state" | "backend" | "source" | "change" | "failed">;

const SHOWN = 8; // findings of the list

export class WhySaid {
  readonly element = h("section", { class: "whysaid", "aria-label": "why it said so", hidden: true });
  private answer: { id: string; found: WhyAnswer } | null = null;
  private asked = "";

  constructor(
    private readonly page: Needs,
    private readonly redraw: () => void,
  ) {}

  /** Links that the answer rests on, to be drawn as arcs; none for another text. */
  arcs(source: TileSource): WhyFinding[] {
    if (this.answer?.id !== source.meta.id) return [];
    return this.answer.found.findings.filter(({ kind, standsOut }) => kind === "edge" && standsOut);
  }

  ask(): void {
    const { backend, source } = this.page;
    if (!backend || !source) return;
    const { id } = source.meta;
    this.asked = id;
    this.element.hidden = false;
    fill(this.element, h("p", { class: "quiet" }, "Switching off one part after the other…"));
    backend
      .why(source.meta, null)
      .then((found) => {
        if (this.asked !== id) return;
        this.answer = { id, found };
        this.draw(source, found);
        this.redraw();
      })
      .catch((error: unknown) => {
        if (this.asked === id) this.close();
        this.page.failed(error);
      });
  }

  close(): void {
    this.asked = "";
    this.answer = null;
    this.element.hidden = true;
    this.redraw();
  }

  /** Another text is not what was asked about; the same one with something cut still is. */
  show(source: TileSource): void {
    const same =
      this.answer && (source.meta.id === this.answer.id || source.meta.cut.length || source.meta.off.length);
    if (this.answer && !same) {
      this.answer = null;
      this.element.hidden = true;
    }
  }

  private draw(source: TileSource, found: WhyAnswer): void {
    const clear = found.findings.filter(({ standsOut }) => standsOut).slice(0, SHOWN);
    const close = h(
      "button",
      { type: "button", class: "closing", "aria-label": "close", onclick: () => this.close() },
      "×",
    );
    fill(
      this.element,
      close,
      h("h2", {}, "Why ", name(label(found.token)), "?"),
      h("p", {}, found.sentence),
      h(
        "p",
        { class: "quiet" },
        clear.length
          ? "Its probability with, and without each part: each was run on its own, and each changes it by more than 19 of 20 parts drawn at random."
          : "No single head, link or word changes it by more than parts drawn at random do: nothing stands out.",
      ),
      h(
        "ol",
        { class: "findings1" },
        clear.map((one) => this.line(source, one)),
      ),
      found.note && h("p", { class: "quiet" }, found.note),
    );
  }

  private line(source: TileSource, one: WhyFinding): HTMLElement {
    const { layer, head, query, key } = one;
    const places = (side: "rows" | "cols") => labels(sideTokens(source, layer ?? 0, side));
    const what =
      one.kind === "edge"
        ? [
            `head ${layer}.${head}: `,
            name(places("rows")[query!]!, "query"),
            " → ",
            name(places("cols")[key!]!, "key"),
          ]
        : one.kind === "head"
          ? [`head ${layer}.${head}`]
          : [
              "what stands at ",
              name(places("rows")[query ?? 0] ?? "", "query"),
              layer === null ? "" : ` in layer ${layer}`,
            ];
    const go = () =>
      this.page.change({
        ...(layer === null ? {} : { layer }),
        ...(head === null ? {} : { head }),
        ...(query === null ? {} : { query }),
        key: key ?? null,
      });
    const cut = () => {
      const { cut, off } = this.page.state;
      if (one.kind === "edge") this.page.change({ cut: [...cut, [layer!, head!, query!, key!]] });
      else if (one.kind === "head") this.page.change({ off: [...off, [layer!, head!]] });
    };
    return h(
      "li",
      {},
      h("button", { type: "button", class: "link", onclick: go }, what),
      h(
        "span",
        { class: `num ${one.effect < 0 ? "down" : "up"}`, title: `log-probability ${number(one.effect)}` },
        `${percent(this.answer!.found.p)} → ${percent(one.p)}`,
      ),
      one.kind === "edge" && h("button", { type: "button", class: "cut", onclick: cut }, "cut"),
      one.kind === "head" && h("button", { type: "button", class: "cut", onclick: cut }, "switch off"),
    );
  }
}
