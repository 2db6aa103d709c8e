// Sharing what is seen: a path of views with captions as one offline file, a picture, the numbers, a notebook cell.

import { css, inkOn } from "./colour";
import type { PageContext } from "./context";
import { fill, h, number } from "./dom";
import { hiddenCss } from "./mapview";
import { escaped, picture, snapshot } from "./snapshot";
import { sideTokens } from "./stage";
import type { Scene } from "./types";
import { labels } from "./words";

/** What a picture of the page is of; `links` draws a canvas anew, as vectors. */
export interface Drawing {
  root: HTMLElement;
  links: (canvas: HTMLCanvasElement) => string;
}

export interface PathView extends Scene {
  doc: string; // id of the trace it shows
}

const MOST_DRAWN = 160; // rows and columns of a vector picture
const MOST_CELLS = 1_000_000; // of a table

type Needs = Pick<PageContext, "state" | "source" | "theme" | "backend" | "docs" | "failed">;

export class Share {
  readonly element = h("details", { class: "share" });
  private readonly list = h("ol", { class: "pathlist" });
  private readonly caption = h("input", {
    "aria-label": "caption of this view",
    placeholder: "caption of this view",
  });
  path: PathView[] = [];

  constructor(
    private readonly page: Needs,
    private readonly drawing: () => Drawing,
  ) {
    const doing = (name: string, act: () => unknown) =>
      h(
        "button",
        {
          type: "button",
          onclick: () => {
            Promise.resolve()
              .then(act)
              .catch((error: unknown) => page.failed(error));
          },
        },
        name,
      );
    fill(
      this.element,
      h("summary", { role: "button" }, "Share"),
      h(
        "div",
        { class: "sharing" },
        h("h2", {}, "A path of views"),
        this.list,
        h(
          "form",
          { class: "player", onsubmit: (event: Event) => this.add(event) },
          this.caption,
          h("button", { type: "submit" }, "Add view"),
        ),
        doing("Save as one offline file", () => this.save()),
        h("h2", {}, "What is shown now"),
        h(
          "div",
          { class: "player" },
          doing("SVG", () => this.svg().then((text) => download("regard.svg", text, "image/svg+xml"))),
          doing("PNG", () => this.png()),
          doing("CSV", () => this.csv().then((text) => download("regard.csv", text, "text/csv"))),
          doing("Notebook cell", () => download("regard-cell.py", this.cell(), "text/x-python")),
        ),
      ),
    );
    this.drawList();
  }

  private add(event: Event): void {
    event.preventDefault();
    const { state, source } = this.page;
    if (!source) return;
    const { model, text, doc, scene, theme, ...view } = state;
    const title = `${this.path.length + 1}.`;
    this.path.push({
      title,
      says: [this.caption.value.trim() || this.name()],
      state: view,
      doc: source.meta.id,
    });
    this.caption.value = "";
    this.drawList();
  }

  private name(): string {
    const { layer, head, at } = this.page.state;
    return `Head ${layer}.${head}, ${at}`;
  }

  private drawList(): void {
    fill(
      this.list,
      this.path.map((view, i) =>
        h(
          "li",
          {},
          String(view.says[0]),
          " ",
          h(
            "button",
            {
              type: "button",
              "aria-label": `remove view ${i + 1}`,
              onclick: () => {
                this.path.splice(i, 1);
                this.drawList();
              },
            },
            "×",
          ),
        ),
      ),
      this.path.length === 0 &&
        h("li", { class: "quiet" }, "No view yet: the file then opens with this one."),
    );
  }

  /** The page as a file. A live one is written by Python; a saved one is itself, with another path. */
  private async save(): Promise<void> {
    if (!this.path.length) this.add(new Event("submit"));
    const { backend } = this.page;
    if (backend) return download("regard.html", await backend.save(this.path), "text/html");
    const copy = document.documentElement.cloneNode(true) as HTMLElement;
    const data = copy.querySelector("#regard-data");
    if (!data) throw new Error("This page cannot copy itself: save it from `regard look`.");
    const held = JSON.parse(data.textContent!) as { path: Scene[] };
    held.path = this.path.map(({ doc, ...scene }) => ({
      ...scene,
      state: { ...scene.state, doc: this.page.docs.findIndex((each) => each.meta.id === doc) },
    }));
    const signs: Record<string, string> = { "<": "\\u003c", ">": "\\u003e", "&": "\\u0026" };
    data.textContent = JSON.stringify(held).replace(/[<>&]/g, (c) => signs[c]!);
    return download("regard.html", `<!doctype html>\n${copy.outerHTML}`, "text/html");
  }

  private async weights(): Promise<{ rows: string[]; cols: string[]; values: Float32Array }> {
    const { state, source } = this.page;
    const { layer, head, valued, at, query } = state;
    const { queries, keys } = source!.meta.layers[layer]!;
    const [r0, r1] = at === "atlas" || query === null ? [0, queries] : [query, query + 1];
    if ((r1 - r0) * keys > MOST_CELLS)
      throw new Error("This head is too large for a table: choose a token in Story.");
    const region = { layer, head, r0, r1, c0: 0, c1: keys, nRow: r1 - r0, nCol: keys, valued };
    const { values } = await source!.tile(region);
    const rows = labels(sideTokens(source!, layer, "rows")).slice(r0, r1);
    return { rows, cols: labels(sideTokens(source!, layer, "cols")), values };
  }

  async csv(): Promise<string> {
    const { rows, cols, values } = await this.weights();
    const quoted = (text: string) => `"${text.replaceAll('"', '""')}"`;
    const lines = rows.map((row, r) =>
      [
        quoted(row),
        ...cols.map((_, c) => values[r * cols.length + c]!).map((v) => (Number.isNaN(v) ? "" : v)),
      ].join(","),
    );
    return `${[["", ...cols.map(quoted)].join(","), ...lines].join("\n")}\n`;
  }

  async svg(): Promise<string> {
    const { page } = this;
    const { at, view } = page.state;
    if (at === "atlas" && view === "map") return this.mapSvg();
    const { root, links } = this.drawing();
    return snapshot(root, page.theme, at === "atlas" ? this.title : "", links);
  }

  private get title(): string {
    const { source, state } = this.page;
    return `${source!.meta.title}, layer ${state.layer}, head ${state.head}`;
  }

  private async mapSvg(): Promise<string> {
    const { rows, cols, values } = await this.weights();
    if (Math.max(rows.length, cols.length) > MOST_DRAWN)
      throw new Error(
        `A vector picture has at most ${MOST_DRAWN} tokens: zoom is for the page, CSV has all numbers.`,
      );
    const { theme, state } = this.page;
    const top = values.reduce((a, v) => Math.max(a, v || 0), 1e-9);
    const how = { scale: state.scale, theme, top, diverging: false };
    const [cell, left, above] = [26, 110, 90];
    const parts = rows.flatMap((row, r) => [
      `<text x="${left - 6}" y="${above + (r + 0.68) * cell}" text-anchor="end">${escaped(row)}</text>`,
      ...cols.map((_, c) => {
        const value = values[r * cols.length + c]!;
        const at = `x="${left + c * cell}" y="${above + r * cell}"`;
        const square = `<rect ${at} width="${cell}" height="${cell}" fill="${Number.isNaN(value) ? hiddenCss(theme) : css(value, how)}"><title>${Number.isNaN(value) ? "hidden" : number(value)}</title></rect>`;
        const ink =
          value >= 0.05 * top
            ? `<text x="${left + (c + 0.5) * cell}" y="${above + (r + 0.65) * cell}" text-anchor="middle" font-size="9" fill="${inkOn(value, how)}">${value.toFixed(2).replace(/^0/, "")}</text>`
            : "";
        return square + ink;
      }),
    ]);
    const names = cols.map(
      (col, c) =>
        `<text transform="translate(${left + (c + 0.6) * cell},${above - 6}) rotate(-50)">${escaped(col)}</text>`,
    );
    return picture(
      left + cols.length * cell + 60,
      above + rows.length * cell + 30,
      theme,
      `<text x="8" y="16" font-weight="600">${escaped(this.title)}</text>${parts.join("")}${names.join("")}`,
    );
  }

  private async png(): Promise<void> {
    const image = new Image();
    image.src = URL.createObjectURL(new Blob([await this.svg()], { type: "image/svg+xml" }));
    await image.decode();
    const canvas = h("canvas", { width: 2 * image.width, height: 2 * image.height });
    canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
    if (blob) download("regard.png", blob, "image/png");
  }

  cell(): string {
    const { state, source } = this.page;
    const { layer, head } = state;
    const key = JSON.stringify(source!.meta.modelKey || source!.meta.title);
    return `import regard\n\nmodel = regard.load(${key})\nregard.show(${JSON.stringify(source!.meta.text)}, model=model, layer=${layer}, head=${head})\n`;
  }
}

function download(name: string, content: string | Blob | ArrayBuffer, type: string): void {
  const link = h("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
