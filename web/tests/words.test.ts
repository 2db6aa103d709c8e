// Tokens as people read them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { isSpecial, label, labels, linkNames, sameToken, spelling, wordsOf } from "../src/words";

const texts = (tokens: string[]) => wordsOf(tokens).map(({ text, first, last }) => [text, first, last]);

test("pieces of WordPiece make one word, special tokens stand alone", () => {
  const tokens = ["[CLS]", "un", "##believ", "##able", "!", "[SEP]"];
  assert.equal(spelling(tokens), "pieces");
  assert.deepEqual(texts(tokens), [
    ["[CLS]", 0, 1],
    ["unbelievable", 1, 4],
    ["!", 4, 5],
    ["[SEP]", 5, 6],
  ]);
});

test("a space before a token begins a word of byte pairs, ▁ one of SentencePiece", () => {
  assert.deepEqual(texts(["The", " cat", "s", " sat", "."]), [
    ["The", 0, 1],
    ["cats", 1, 3],
    ["sat", 3, 4],
    [".", 4, 5],
  ]);
  assert.deepEqual(texts(["▁The", "▁cat", "s"]), [
    ["The", 0, 1],
    ["cats", 1, 3],
  ]);
});

test("bytes are words between spaces", () => {
  assert.deepEqual(
    texts(["t", "o", "␣", "b", "e"]).map(([text]) => text),
    ["to", "␣", "be"],
  );
});

test("byte tokens of one character are called by it and counted; a lone byte stays a byte", () => {
  assert.deepEqual(labels(["hi", " \\xf0\\x9f\\x98", "\\x80", "\\xff"]), ["hi", "😀 1/2", "😀 2/2", "\\xff"]);
});

test("spaces, control characters and nothing have a name", () => {
  assert.deepEqual([" ", "\n", "", "▁a"].map(label), ["␣", "␣", "∅", "a"]);
  assert.equal(label("a\x1b"), "a␛");
});

test("brackets and angles of capitals are special, other words in them are not", () => {
  assert.deepEqual(["[SEP]", "<s>", "</s>", "<|endoftext|>"].map(isSpecial), [true, true, true, true]);
  assert.deepEqual(["[sep]", "< b", "SEP", "[]"].map(isSpecial), [false, false, false, false]);
});

test("a link between two equal words says which is which", () => {
  const tokens = ["to", "be", "or", "to"];
  assert.deepEqual(linkNames(tokens, tokens, 3, 0), { query: "to (3)", key: "to (0)" });
  assert.deepEqual(linkNames(tokens, tokens, 3, 1), { query: "to", key: "be" });
});

test("a word of another text is its n-th for our n-th, and the last where there are fewer", () => {
  const from = ["it", "saw", "it"];
  assert.equal(sameToken(from, 2, ["so", "it", "and", "it"]), 3);
  assert.equal(sameToken(from, 2, ["so", "it"]), 1);
  assert.equal(sameToken(from, 1, ["so", "it"]), -1);
});
