// The panels beside the stage: why this weight, facts of the head, predictions. Each asks again only when
// what it shows has changed.

import type { PageContext } from "./context";
import { fill, h, number } from "./dom";
import { showFacts, showPredictions } from "./facts";
import { sideTokens } from "./stage";
import type { OneHead, Pair, TileSource } from "./types";
import { showWhy } from "./why";
import { labels, linkNames } from "./words";

export const NEEDS_MODEL =
  "This is a saved page: it has the numbers of one run and no model. `regard look` opens it live.";

const LONG = 1024; // tokens: predictions of longer texts wait until they are asked for

type Needs = Pick<
  PageContext,
  "state" | "facts" | "theme" | "backend" | "change" | "failed" | "render" | "drawn"
>;

export class Panels {
  readonly why = h("div", { class: "inside" });
  readonly about = h("div", { class: "inside" });
  readonly predicting = h("div", { class: "inside" });
  readonly offs = h("div", { class: "offs" });
  private position: number | null = null; // of the prediction; null: the model's usual one
  private done = { why: "", facts: "", predict: "" };

  private insisted = ""; // the long text whose predictions were asked for

  constructor(private readonly page: Needs) {}

  /** Forget what was asked: the trace is another one. */
  renew(): void {
    this.position = null;
    this.done = { why: "", facts: "", predict: "" };
  }

  /** Ask for the facts of the shown head again: it may not have been the time to before. */
  renewFacts(): void {
    this.done.facts = "";
  }

  render(source: TileSource): void {
    const { view, query } = this.page.state;
    // Where words are masked, a click on one masks it.
    if (source.meta.predicts === "masked" && view === "text" && query !== null) this.position = query;
    this.drawWhy(source);
    this.drawFacts(source);
    this.drawPredictions(source);
  }

  private drawWhy(source: TileSource): void {
    const { layer, head, query, key } = this.page.state;
    const wanted = JSON.stringify([source.meta.id, layer, head, query, key, this.page.theme, this.position]);
    if (wanted === this.done.why) return;
    this.done.why = wanted;
    if (query === null || key === null) {
      fill(
        this.why,
        h("p", { class: "quiet" }, "Click a cell of the map to see how its weight is computed."),
      );
      return;
    }
    const names = linkNames(sideTokens(source, layer, "rows"), sideTokens(source, layer, "cols"), query, key);
    source
      .parts(layer, head, query, key)
      .then((parts) => {
        if (wanted !== this.done.why) return;
        showWhy(this.why, parts, names, this.page.theme, this.gradient(source, { layer, head, query, key }));
      })
      .catch((error: unknown) => this.page.failed(error));
  }

  private gradient(
    source: TileSource,
    at: { layer: number; head: number; query: number; key: number },
  ): HTMLElement | null {
    const { meta } = source;
    if (!this.page.backend || meta.predicts === null || meta.generated)
      return h(
        "p",
        { class: "quiet" },
        this.page.backend ? "" : "The gradient of a prediction on this score needs a live model.",
      );
    const answer = h("span", { class: "num" });
    const ask = h(
      "button",
      {
        type: "button",
        class: "link",
        onclick: () => {
          answer.textContent = " …";
          const position = this.position ?? meta.tokens.length - 1;
          this.page
            .backend!.gradient(meta, { ...at, position })
            .then((found) => {
              answer.textContent = ` ${number(found.gradient)} for ${found.token}`;
              answer.dataset["gradient"] = String(found.gradient);
            })
            .catch((error: unknown) => {
              answer.textContent = "";
              this.page.failed(error);
            });
        },
      },
      "Gradient of the prediction on this score",
    );
    return h("p", {}, ask, answer);
  }

  private drawFacts(source: TileSource): void {
    const { layer, head, valued } = this.page.state;
    const complete = this.page.facts !== null; // a label is known with the facts of all heads
    const wanted = JSON.stringify([source.meta.id, layer, head, valued, complete]);
    if (wanted === this.done.facts) return;
    this.done.facts = wanted;
    const names = {
      rows: labels(sideTokens(source, layer, "rows")),
      cols: labels(sideTokens(source, layer, "cols")),
    };
    const canValue = source.meta.layers[layer]!.values;
    let one: OneHead | null = null;
    let pairs: Pair[] | null = null;
    const draw = () => {
      if (wanted !== this.done.facts) return;
      showFacts(this.about, one, pairs, names, valued, canValue, complete, {
        value: (on) => this.page.change({ valued: on }),
        pair: ({ query, key }) => this.page.change({ query, key }),
      });
    };
    draw();
    this.page
      .drawn()
      .then(() => (wanted === this.done.facts ? source.headFacts(layer, head) : null))
      .then((found) => {
        one = found;
        draw();
        return wanted === this.done.facts ? source.pairs(layer, head) : null;
      })
      .then((found) => {
        pairs = found;
        draw();
      })
      .catch((error: unknown) => this.page.failed(error));
  }

  private drawPredictions(source: TileSource): void {
    const { off, layer, head } = this.page.state;
    const { meta } = source;
    const isOff = off.some(([l, x]) => l === layer && x === head);
    const live = this.page.backend !== null && meta.kind !== "unknown" && !meta.generated;
    const why = !this.page.backend
      ? NEEDS_MODEL
      : meta.generated
        ? "A text being written is shown as it was. End the writing to switch heads off."
        : !live
          ? "Only a model that is loaded here can be run again."
          : "";
    const toggle = () =>
      this.page.change({
        off: isOff ? off.filter(([l, x]) => l !== layer || x !== head) : [...off, [layer, head]],
      });
    fill(
      this.offs,
      h(
        "button",
        { type: "button", disabled: !live, title: why || "key: x", class: "switch", onclick: toggle },
        isOff ? `Switch head ${layer}.${head} on` : `Switch head ${layer}.${head} off`,
      ),
      off.length > 0 &&
        h("button", { type: "button", onclick: () => this.page.change({ off: [] }) }, "all on"),
      off.map(([l, x]) => h("span", { class: "chip" }, h("i"), `${l}.${x} off`)),
    );
    const wanted = JSON.stringify([meta.id, this.position]);
    if (wanted === this.done.predict) return;
    this.done.predict = wanted;
    const show = (answer: Parameters<typeof showPredictions>[1], reason: string | null) =>
      showPredictions(
        this.predicting,
        answer,
        reason,
        meta.tokens,
        meta.predicts === "masked" ? this.position : null,
        {
          at: (position) => {
            this.position = position;
            this.page.render();
          },
        },
      );
    if (!live || meta.predicts === null)
      return show(null, why || "This model predicts nothing that can be shown.");
    if (meta.tokens.length > LONG && this.insisted !== meta.id) {
      const insist = () => {
        this.insisted = meta.id;
        this.done.predict = "";
        this.page.render();
      };
      const note = "A text this long takes the model a while to read again.";
      fill(
        this.predicting,
        h("p", { class: "quiet" }, note),
        h("button", { type: "button", onclick: insist }, "Predict"),
      );
      return undefined;
    }
    show(null, null);
    this.page
      .drawn()
      .then(() => this.page.backend!.predict(meta, this.position))
      .then((answer) => {
        if (wanted === this.done.predict) show(answer, null);
      })
      .catch((error: unknown) => {
        show(null, error instanceof Error ? error.message : String(error));
      });
    return undefined;
  }
}
