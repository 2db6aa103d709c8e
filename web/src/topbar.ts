// The bar above: which model, which text, and what goes with the page as a whole.

import { paint, type Theme } from "./colour";
import type { PageContext } from "./context";
import { choice, fill, h, option } from "./dom";
import { titlesOf } from "./state";
import type { Progress } from "./types";

type Needs = Pick<
  PageContext,
  "state" | "source" | "theme" | "backend" | "models" | "docs" | "change" | "look" | "failed"
>;

export class TopBar {
  readonly element = h("header", { class: "top" });
  private readonly text = h("textarea", {
    "aria-label": "text",
    placeholder: "Type a text and press Enter",
    rows: 1,
    spellcheck: false,
  });
  private readonly target = h("textarea", {
    "aria-label": "answer",
    placeholder: "answer (empty: the model writes it)",
    rows: 1,
    spellcheck: false,
  });
  private readonly model = h("select", { "aria-label": "model" });
  private readonly run = h("button", { type: "submit", class: "primary" }, "Look");
  private readonly brand = h("h1", { class: "brand" });
  private readonly themer = h(
    "button",
    { type: "button", "aria-label": "light or dark", title: "light or dark" },
    "◐",
  );
  private readonly altitudes = h("div", { class: "altitudes" });
  private shown = "";
  private running = false;
  private typed = false; // what is in the field was typed and not read yet
  private stated = ""; // the text of the page when the field was last filled

  constructor(
    private readonly page: Needs,
    extras: { share: HTMLElement; help: () => void; stop: () => void },
  ) {
    const submit = (event: Event) => {
      event.preventDefault();
      if (!this.text.value.trim()) {
        this.text.focus();
        return this.page.failed(new Error("The text is empty: type at least one word."));
      }
      this.typed = false;
      return this.page.look({ text: this.text.value, target: this.target.value, write: 0, off: [] });
    };
    this.run.addEventListener("click", (event) => {
      if (!this.running) return;
      event.preventDefault();
      extras.stop();
    });
    this.text.addEventListener("input", () => {
      this.typed = true;
    });
    for (const area of [this.text, this.target])
      area.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && !event.shiftKey) submit(event);
      });
    this.model.addEventListener("change", () =>
      this.page.change({
        model: this.model.value,
        text: this.page.models.find((m) => m.key === this.model.value)?.given ? "" : this.text.value,
        off: [],
        write: 0,
        more: [],
        layer: 0,
        head: 0,
      }),
    );
    this.themer.addEventListener("click", () =>
      this.page.change({ theme: this.page.theme === "dark" ? "light" : "dark" }),
    );
    fill(
      this.element,
      this.brand,
      this.altitudes,
      h(
        "form",
        { onsubmit: submit },
        this.model,
        h("div", { class: "texts" }, this.text, this.target),
        this.run,
      ),
      h(
        "div",
        { class: "extras" },
        extras.share,
        h(
          "button",
          { type: "button", "aria-label": "words and keys", title: "words and keys", onclick: extras.help },
          "?",
        ),
        this.themer,
      ),
    );
  }

  /** While a model runs the button stops it, and says how many of its layers are done. */
  busy(progress: Progress | null): void {
    this.running = progress !== null;
    const layers = progress?.total ? ` ${progress.done} / ${progress.total} layers` : "";
    fill(
      this.run,
      progress ? [h("span", { class: "spin", "aria-hidden": "true" }), `Stop${layers}`] : "Look",
    );
  }

  render(): void {
    const { page } = this;
    const { state, source } = page;
    fill(
      this.altitudes,
      choice("view of the page", titlesOf("page"), state.at, (at) => this.page.change({ at, scene: null })),
    );
    const key = JSON.stringify([
      state.model,
      state.text,
      state.target,
      page.theme,
      page.models.length,
      source?.meta.id,
    ]);
    if (key === this.shown) return;
    this.shown = key;
    fill(this.brand, mark(page.theme), "Regard");
    const live = page.backend !== null;
    const reason = live ? "" : "This saved page has no model: `regard look` opens it live.";
    const docs = page.docs;
    const choices = live
      ? page.models.map((m) =>
          option(
            m.key,
            m.present ? m.name : `${m.name} (get it: ${m.command})`,
            m.key === state.model,
            !m.present,
          ),
        )
      : [option("", source?.meta.title ?? "", true)];
    if (live && state.model && !page.models.some((m) => m.key === state.model))
      choices.unshift(option(state.model, source?.meta.title ?? state.model, true));
    fill(this.model, choices);
    if (!live && docs.length > 1) {
      fill(
        this.model,
        docs.map((doc, i) =>
          option(String(i), `${i + 1}: ${doc.meta.text.slice(0, 40) || doc.meta.title}`, i === state.doc),
        ),
      );
      this.model.onchange = () => this.page.change({ doc: Number(this.model.value) });
    } else this.model.disabled = !live;
    // What somebody is typing stays when a model or a trace arrives meanwhile.
    if (this.typed && state.text !== this.stated && this.stated !== "") this.typed = false; // another was chosen
    if (!this.typed) this.text.value = state.text || source?.meta.text || "";
    this.stated = state.text;
    this.target.value = state.target;
    const kind = page.models.find((m) => m.key === state.model)?.kind ?? source?.meta.kind;
    this.target.hidden = kind !== "encoder-decoder";
    for (const control of [this.text, this.target, this.run]) {
      control.disabled = !live;
      control.title = reason;
    }
    this.model.title = reason;
  }
}

/** The mark of the page: a small causal map. */
function mark(theme: Theme): HTMLCanvasElement {
  const n = 5;
  const values = Float32Array.from({ length: n * n }, (_, i) => {
    const r = Math.floor(i / n);
    const c = i % n;
    return c > r ? NaN : c === r ? 0.9 : 0.5 / (r - c + 1);
  });
  const canvas = paint({ nRow: n, nCol: n, values }, { scale: "sqrt", theme, top: 1, diverging: false });
  return canvas;
}
