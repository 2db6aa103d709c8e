"""What the experiments with trained models read."""

TEXTS = (
    "The gardener planted beans along the fence, and by the end of June they had climbed to the top of it.",
    "If the train is late again, we will miss the boat, and the next boat does not leave until the morning.",
    "He opened the letter, read it twice, put it back into its envelope, and never spoke of it to anyone.",
    "Glass is made from sand, which is cheap, and heat, which is not; that is why old bottles were returned.",
    "The teacher asked a question. Nobody answered. She asked it again, more slowly, and this time two did.",
    "A map that showed everything would be as large as the country, and nobody would know how to fold it.",
    "They built the tower in three years, but it took another ten before anyone could agree on its purpose.",
    "Salt water freezes at a lower temperature than fresh water, so harbours stay open longer than lakes do.",
)
