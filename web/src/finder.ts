// Which head sends a word to another? Answered over sentences that mark both, against chance.

import type { PageContext } from "./context";
import { fill, h, percent } from "./dom";

const SENTENCES = [
  "The [animal] didn't cross the street because *it* was too tired",
  "The [dog] barked at the cat because *it* was angry",
  "The old [car] would not start because *it* was too cold",
  "She liked the [book] because *it* was funny",
];

type Needs = Pick<PageContext, "source" | "backend" | "change" | "failed">;

export class Finder {
  readonly element = h("div", { class: "inside" });
  private readonly lines = h("textarea", { "aria-label": "sentences", rows: 5, spellcheck: false });
  private readonly found = h("div", { role: "status" });

  constructor(private readonly page: Needs) {
    this.lines.value = SENTENCES.join("\n");
    fill(
      this.element,
      h(
        "p",
        { class: "quiet" },
        "One sentence in each line: the word that looks in *stars*, the word it looks at in [brackets].",
      ),
      this.lines,
      h("button", { type: "button", onclick: () => this.search() }, "Find the head that links them"),
      this.found,
    );
  }

  private search(): void {
    const { page } = this;
    if (!page.backend || !page.source)
      return page.failed(new Error("Searching needs a model: `regard look` has one."));
    fill(this.found, h("p", { class: "quiet" }, "Reading the sentences…"));
    page.backend
      .search(page.source.meta, this.lines.value.split("\n"))
      .then(({ heads, pairs, offset, baseline, chance }) =>
        fill(
          this.found,
          h(
            "p",
            {},
            `Of ${pairs} sentence${pairs > 1 ? "s" : ""} these heads look most at the right word. A blind guess: ${percent(chance)}; always ${Math.abs(offset)} word${Math.abs(offset) > 1 ? "s" : ""} ${offset < 0 ? "back" : "ahead"}: ${percent(baseline)}.`,
          ),
          h(
            "ol",
            { class: "pairs" },
            heads.map(({ layer, head, share }) =>
              h(
                "li",
                {},
                h(
                  "button",
                  { type: "button", class: "link", onclick: () => page.change({ layer, head }) },
                  `head ${layer}.${head}`,
                ),
                h("span", { class: "num" }, percent(share)),
              ),
            ),
          ),
        ),
      )
      .catch((error: unknown) => {
        fill(this.found);
        page.failed(error);
      });
    return undefined;
  }
}
