// What a part of the page may ask of the whole. A part names what it needs with `Pick`; none knows the App.

import type { Theme } from "./colour";
import type { EmbeddedDoc } from "./sources";
import type { State } from "./state";
import type { Backend, HeadFacts, ModelChoice, TileSource } from "./types";

export interface PageContext {
  /** What is chosen; read only, because a change is asked for with `change`. */
  readonly state: Readonly<State>;
  /** The trace that is shown; null until the first one is there. */
  readonly source: TileSource | null;
  /** Measures and labels of its heads; null until they are measured. */
  readonly facts: HeadFacts | null;
  readonly theme: Theme;
  /** A model that can be run; null in a saved page. */
  readonly backend: Backend | null;
  readonly models: readonly ModelChoice[];
  /** The traces that a saved page holds. */
  readonly docs: readonly EmbeddedDoc[];
  change(patch: Partial<State>): void;
  /** Look at a text, also at one that could not be looked at before. */
  look(patch: Partial<State>): void;
  /** Tell the reader what went wrong. */
  failed(error: unknown): void;
  /** Draw again what has changed outside the state. */
  render(): void;
  /** Resolves once the map is drawn: what the eye waits for comes before measures and predictions. */
  drawn(): Promise<void>;
}
