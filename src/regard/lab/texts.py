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
    "When the music stopped, the dancers went on for a while, and then one after the other they noticed.",
    "The library lends tools as well as books: a ladder for a week, a drill for a day, a saw for an hour.",
    "My sister learned to swim in the sea and never trusted pools, in which, she said, nothing moves.",
    "To bake the cake, beat the eggs first, then add the sugar, and only when it is pale add the flour.",
    "The old road follows the river because the people who made it followed their cattle, and cattle drink.",
    "Every winter the village lost a few roofs to the wind, and every spring it built them a little lower.",
    "The judge said that the law was clear, that the facts were not, and that she would need another week.",
    "A good question is worth more than a good answer, since the answer ends a talk that the question began.",
    "The engine had run for eleven years without a fault; on the day of the inspection it would not start.",
    "Some birds fly by night and steer by the stars, which is why tall lit buildings lead so many astray.",
    "He counted the money twice and got two different sums, so he counted it a third time and got another.",
    "In the first act the letter is lost, in the second it is found, and in the third nobody wants it.",
)
