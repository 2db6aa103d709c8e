// What the model predicts, always in view, and what a change does to it.

import type { PageContext } from "./context";
import { fill, h, percent } from "./dom";
import type { PredictionAnswer, TileSource } from "./types";
import { label, name } from "./words";

type Needs = Pick<PageContext, "state" | "backend" | "source" | "change" | "failed" | "drawn">;

const SHOWN = 5; // bars
const LONG = 1024; // tokens: predictions of longer texts wait until they are asked for

/** One bar: what it stands for now, and before the last change; null where that is not known. */
export interface Bar {
  token: string;
  p: number;
  was: number | null;
}

/** Bars of an answer. Heads off and links cut are compared with the whole model, another text with the one before. */
export function barsOf(answer: PredictionAnswer, before: PredictionAnswer | null): Bar[] {
  if (answer.now) return answer.now.slice(0, SHOWN);
  const old = before && before.kind === answer.kind ? (before.now ?? before.before) : null;
  const was = (token: string) => old?.find((one) => one.token === token)?.p ?? null;
  return answer.before.slice(0, SHOWN).map(({ token, p }) => ({ token, p, was: old ? was(token) : p }));
}

export class PredictionPanel {
  readonly element = h("section", { class: "predicted", "aria-label": "prediction" });
  private readonly answers = new Map<string, PredictionAnswer>();
  private shown = "";
  private before: { text: string; answer: PredictionAnswer } | null = null;
  private current: { text: string; answer: PredictionAnswer } | null = null;
  private insisted = "";

  constructor(
    private readonly page: Needs,
    private readonly why: () => void,
  ) {}

  /** The likeliest token now; null while nothing is known. */
  get likeliest(): string | null {
    const answer = this.current?.answer;
    return (answer?.now ?? answer?.before)?.[0]?.token ?? null;
  }

  show(source: TileSource): void {
    const { meta } = source;
    const { backend } = this.page;
    if (this.shown === meta.id) return;
    this.shown = meta.id;
    const known = meta.prediction ?? this.answers.get(meta.id);
    if (known) return this.draw(source, known);
    if (!backend || meta.predicts === null || meta.generated) {
      this.current = null;
      this.element.hidden = true;
      return;
    }
    this.element.hidden = false;
    if (meta.tokens.length > LONG && this.insisted !== meta.id) {
      const insist = () => {
        this.insisted = meta.id;
        this.shown = "";
        this.show(source);
      };
      fill(
        this.element,
        h("p", { class: "quiet" }, "A text this long takes the model a while to read again. "),
        h("button", { type: "button", onclick: insist }, "Predict"),
      );
      return;
    }
    if (!this.current) fill(this.element, h("p", { class: "quiet" }, "Predicting…"));
    this.element.classList.add("waiting");
    this.page
      .drawn()
      .then(() => backend.predict(meta, null))
      .then((answer) => {
        this.answers.set(meta.id, answer);
        if (this.answers.size > 32) this.answers.delete(this.answers.keys().next().value!);
        if (this.shown === meta.id) this.draw(source, answer);
      })
      .catch((error: unknown) => {
        const said = error instanceof Error ? error.message : String(error);
        fill(this.element, h("p", { class: "quiet" }, said));
        this.element.classList.remove("waiting");
      });
  }

  private draw(source: TileSource, answer: PredictionAnswer): void {
    const { meta } = source;
    if (this.current && this.current.text !== meta.text) this.before = this.current;
    this.current = { text: meta.text, answer };
    this.element.hidden = false;
    this.element.classList.remove("waiting");
    const compared = !answer.now && this.before && this.before.text !== meta.text ? this.before.answer : null;
    const bars = barsOf(answer, compared);
    const changed = answer.now !== null || compared !== null;
    const title = {
      next: "What comes next",
      masked: `In the place of ${label(meta.tokens[answer.position] ?? "")}`,
      vector: "Nearest of six sentences (cosine)",
    }[answer.kind];
    const note = answer.now
      ? [
          meta.off.length > 0 && "without the heads that are off",
          meta.cut.length > 0 && "without the links that are cut",
        ]
          .filter((part) => typeof part === "string")
          .join(" and ")
      : compared
        ? "compared with the text before"
        : "";
    const rows = bars.map(({ token, p, was }) => {
      const [now, old] = [h("span", { class: "now" }), h("span", { class: "was" })];
      now.style.width = `${100 * Math.max(0, Math.min(1, p))}%`;
      old.style.width = `${100 * Math.max(0, Math.min(1, was ?? 0))}%`;
      const moved = changed && was !== null && Math.abs(p - was) >= 0.005;
      const value = answer.kind === "vector" ? p.toFixed(2) : percent(p);
      const before =
        was === null
          ? "not among the likeliest before"
          : answer.kind === "vector"
            ? `was ${was.toFixed(2)}`
            : `was ${percent(was)}`;
      return h(
        "li",
        { class: moved ? (p > was! ? "up" : "down") : "" },
        h("span", { class: "token1" }, name(label(token))),
        h("span", { class: "track", "aria-hidden": "true" }, changed && was !== null && old, now),
        h("span", { class: "num" }, value),
        h("span", { class: "quiet before" }, changed && (moved || was === null) ? before : ""),
      );
    });
    const top = bars[0];
    fill(
      this.element,
      h("h2", {}, title, note && h("span", { class: "quiet" }, ` ${note}`)),
      h(
        "ol",
        {
          class: answer.kind === "vector" ? "bars5 sentences" : "bars5",
          "data-moved": changed ? "true" : "false",
        },
        rows,
      ),
      answer.moved !== null &&
        answer.now &&
        h("p", { class: "quiet" }, `The sentence vector moved by ${answer.moved.toFixed(3)} (1 − cosine).`),
      top &&
        this.page.backend &&
        answer.kind !== "vector" &&
        !meta.off.length &&
        !meta.cut.length &&
        meta.tokens.length <= 128 &&
        h(
          "button",
          { type: "button", class: "tool", onclick: () => this.why() },
          "Why did it say ",
          name(label(top.token)),
          "?",
        ),
    );
  }
}
