// The second panel: another head, another run of the model, another text.

import type { PageContext } from "./context";
import { h, option } from "./dom";
import { NEEDS_MODEL } from "./panels";
import { EmbeddedTiles } from "./sources";
import type { Shown } from "./stage";
import type { CompareName } from "./state";
import type { TileSource } from "./types";

type Needs = Pick<
  PageContext,
  "state" | "source" | "backend" | "models" | "docs" | "change" | "failed" | "render"
>;

export class Comparison {
  private second: { key: string; source: TileSource } | null = null;
  private asking = ""; // what the second panel waits for

  constructor(private readonly page: Needs) {}

  /** What stands in the second panel; null while there is nothing, or not yet. */
  shown(): Shown | null {
    const { state } = this.page;
    if (state.compare === "none") return null;
    void this.load();
    const source = this.second?.source;
    if (!source) return null;
    const layer = Math.min(state.layer2, source.meta.layers.length - 1);
    const head = Math.min(state.head2, source.meta.layers[layer]!.heads - 1);
    return { source, layer, head, title: this.titled(source, { layer, head }) };
  }

  /** What a panel is called: its model and head, or its text where texts are compared. */
  titled(source: TileSource, { layer, head }: { layer: number; head: number }): string {
    const { compare } = this.page.state;
    const { title, text, off } = source.meta;
    const place = `layer ${layer} · head ${head}`;
    if (compare === "text" || compare === "document") return `${place} · “${text}”`;
    const heads = compare === "heads off" ? (off.length ? " · heads off" : " · all heads on") : "";
    return `${title} · ${place}${heads}`;
  }

  private async load(): Promise<void> {
    const { state, backend, source } = this.page;
    if (!source) return;
    const { compare, other } = state;
    const key = JSON.stringify([compare, other, source.meta.id]);
    if (this.second?.key === key || this.asking === key) return;
    this.asking = key;
    this.second = null;
    const meta = source.meta;
    const request = {
      model: meta.modelKey,
      text: meta.text,
      target: meta.target,
      off: [] as [number, number][],
    };
    try {
      let found: TileSource | null = null;
      if (compare === "head") found = source;
      else if (compare === "document")
        found = this.page.docs[Number(other)] ? new EmbeddedTiles(this.page.docs[Number(other)]!) : null;
      else if (backend && compare === "random")
        found = await backend.trace({ ...request, model: `${meta.modelKey} (untrained)` });
      else if (backend && compare === "model" && other)
        found = await backend.trace({ ...request, model: other });
      else if (backend && compare === "text" && other.trim())
        found = await backend.trace({ ...request, text: other });
      else if (backend && compare === "heads off") found = await backend.trace(request);
      if (
        JSON.stringify([this.page.state.compare, this.page.state.other, this.page.source?.meta.id]) !== key ||
        !found
      )
        return;
      this.second = { key, source: found };
      this.asking = "";
      this.page.render();
    } catch (error) {
      if (this.asking !== key) return;
      this.asking = "";
      this.page.failed(error);
      this.page.change({ compare: "none" });
    }
  }

  /** What to compare with, as controls. */
  controls(): HTMLElement {
    const { state, backend } = this.page;
    const live = backend !== null;
    const names: [CompareName, string, boolean][] = [
      ["none", "nothing", true],
      ["head", "another head", true],
      ["random", "the same model untrained", live],
      ["model", "another model", live],
      ["text", "another text", live],
      ["heads off", "before switching off", live && state.off.length > 0],
      ["document", "another sequence", this.page.docs.length > 1],
    ];
    const pick = (compare: CompareName) => {
      const other =
        compare === "model"
          ? (this.page.models.find((m) => m.key !== state.model && m.present)?.key ?? "")
          : compare === "text"
            ? (this.page.source?.meta.text ?? "")
            : compare === "document"
              ? String(state.doc === 0 ? 1 : 0)
              : "";
      const same = compare !== "head";
      this.page.change({
        compare,
        other,
        layer2: state.layer,
        head2: same
          ? state.head
          : (state.head + 1) % (this.page.source?.meta.layers[state.layer]?.heads ?? 1),
      });
    };
    return h(
      "span",
      { class: "inline" },
      "compare with",
      h(
        "select",
        {
          "aria-label": "compare with",
          title: live ? "" : NEEDS_MODEL,
          onchange: (event: Event) => pick((event.target as HTMLSelectElement).value as CompareName),
        },
        names.map(([name, label, able]) => option(name, label, name === state.compare, !able)),
      ),
      state.compare === "model" &&
        h(
          "select",
          {
            "aria-label": "other model",
            onchange: (event: Event) =>
              this.page.change({ other: (event.target as HTMLSelectElement).value }),
          },
          this.page.models.map((m) => option(m.key, m.name, m.key === state.other, !m.present)),
        ),
      state.compare === "text" &&
        h("input", {
          "aria-label": "other text",
          value: state.other,
          onchange: (event: Event) => this.page.change({ other: (event.target as HTMLInputElement).value }),
        }),
      state.compare !== "none" &&
        !this.second &&
        h("span", { class: "spin", role: "status", "aria-label": "computing" }),
      state.compare !== "none" &&
        h(
          "label",
          { class: "inline" },
          h("input", {
            type: "checkbox",
            checked: state.difference,
            onchange: (event: Event) =>
              this.page.change({ difference: (event.target as HTMLInputElement).checked }),
          }),
          "difference",
        ),
    );
  }
}
