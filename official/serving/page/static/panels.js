// What each panel asks, and how it shows what comes back. Texts go into the page as text, never as HTML.

const MASK = "[MASK]";
const MOST_LABELS = 10; // that are shown
const percent = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
const decimal = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** Returns an element with attributes and children; strings become text. */
export function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Returns a text in three parts, cut at two places that count code points, as the server does. */
export function cut(text, start, end) {
  const points = Array.from(text);
  return [points.slice(0, start), points.slice(start, end), points.slice(end)].map((part) => part.join(""));
}

/** Throws where one of some values of an answer is not of a type. */
function mustBe(type, ...values) {
  if (values.some((value) => typeof value !== type)) {
    throw new TypeError(`expected a ${type} in the server's answer, received ${JSON.stringify(values)}`);
  }
}

function big(text) {
  return make("p", { class: "big" }, text);
}

function note(text) {
  return make("p", { class: "note" }, text);
}

/** Says whose text was too long for the model; `cut` are the numbers of such instances. */
export function cutNote(method, instances, cut) {
  const left = "than the model takes, and what is behind that was left out";
  if (instances.length > 1) {
    const shown = cut.slice(0, 3).map((number) => `“${Array.from(instances[number].text).slice(0, 40).join("")}…”`);
    const count = `${cut.length} of ${instances.length} texts ${cut.length > 1 ? "are" : "is"}`;
    return make("p", { class: "cut" }, `${count} longer ${left}: ${shown.join(", ")}`);
  }
  const one = method === "answer" ? "The question is" : "The text is";
  return make("p", { class: "cut" }, `${instances[0].sentence_b ? "The two sentences are" : one} longer ${left}.`);
}

/** Returns a bar from 0 to 1. Its length says nothing that the text beside it does not say, too. */
function bar(share) {
  const filled = make("span");
  filled.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  return make("span", { class: "bar", "aria-hidden": "true" }, filled);
}

function row(name, share) {
  return make("li", {}, make("span", { class: "word" }, name), make("span", {}, percent.format(share)), bar(share));
}

/** Returns a text that scrolls, by the keyboard, too, where it is long. */
function passage(name, ...children) {
  return make("div", { class: "passage", role: "group", tabindex: "0", "aria-label": name }, ...children);
}

function showAnswer({ context }, [{ text, start, end, score }]) {
  mustBe("string", text);
  mustBe("number", start, end, score);
  if (text === "") {
    return { parts: [big("No answer"), note(`The text does not say it. Probability of that: ${percent.format(score)}.`)] };
  }
  const [before, inside, after] = cut(context, start, end);
  const mark = make("mark", {}, inside);
  return {
    parts: [
      big(text),
      make("ul", { class: "rows lone" }, row("Probability", score)),
      make("h2", { class: "title" }, "Where the text says it"),
      passage("The text with the answer marked", before, mark, after),
    ],
    mark,
  };
}

function showWords({ text }, [{ tokens, scores }]) {
  const pieces = text.split(MASK);
  const count = pieces.length - 1;
  const best = tokens.slice(0, count).map((words) => words[0]);
  const filled = pieces.flatMap((piece, mask) => (mask < count ? [piece, make("mark", {}, best[mask])] : [piece]));
  const lists = tokens.slice(0, count).flatMap((words, mask) => {
    const rows = words.map((word, place) => row(word, scores[mask][place]));
    const title = count > 1 ? `${MASK} ${mask + 1} of ${count}` : `Words for ${MASK}`;
    return [make("h2", { class: "title" }, title), make("ol", { class: "rows" }, ...rows)];
  });
  const parts = [passage("The text with the likeliest words", ...filled), ...lists];
  if (best.some((word) => word.startsWith("##"))) {
    parts.push(note("## goes on with the word before it."));
  }
  return { parts };
}

function showLabel(_values, [{ label, score, labels, scores }]) {
  mustBe("string", label);
  mustBe("number", score, ...scores);
  const named = labels.map((name, place) => [nameOfLabel(name), scores[place]]);
  if (!label && named.length > 1) {
    const rows = named.map(([name, value]) => numberRow(name, value));
    return { parts: [big("Scores"), make("ul", { class: "rows" }, ...rows), note("Numbers of this model, not probabilities.")] };
  }
  if (!label) {
    return { parts: [big(decimal.format(score)), note("A score of this model, not a probability.")] };
  }
  named.sort((one, other) => other[1] - one[1]);
  const rows = named.slice(0, MOST_LABELS).map(([name, value]) => row(name, value));
  return { parts: [big(nameOfLabel(label)), make("ul", { class: "rows" }, ...rows)] };
}

function showEntities({ text }, [{ types, entities, starts, ends, scores }]) {
  mustBe("string", ...types);
  mustBe("number", ...starts, ...ends, ...scores);
  const count = types.filter((type) => type).length;
  const points = Array.from(text);
  const parts = [];
  let place = 0;
  for (let number = 0; number < count; number += 1) {
    const inside = points.slice(starts[number], ends[number]).join("");
    parts.push(points.slice(place, starts[number]).join(""));
    parts.push(make("mark", {}, inside, "\u00a0", make("span", { class: "type" }, types[number])));
    place = ends[number];
  }
  parts.push(points.slice(place).join(""));
  if (!count) {
    return { parts: [big("No entity"), passage("The text", text)] };
  }
  const rows = types.slice(0, count).map((type, number) => row(`${entities[number]} (${type})`, scores[number]));
  return {
    parts: [
      big(count === 1 ? "One entity" : `${count} entities`),
      passage("The text with its entities marked", ...parts),
      make("ol", { class: "rows" }, ...rows),
    ],
  };
}

/** Some tasks of GLUE only count their labels. */
export function nameOfLabel(label) {
  return /^\d+$/.test(label) ? `Label ${label}` : label;
}

function numberRow(name, value) {
  return make("li", {}, make("span", { class: "word" }, name), make("span", {}, decimal.format(value)));
}

/** Returns the lines of a list of texts, those without a text left out. */
function linesOf(text) {
  return text.split("\n").map((line) => line.trim()).filter((line) => line);
}

/** Shows how alike a text is to another, or to each line of a list, the most alike first. */
function showSimilarity({ other }, predictions) {
  const [first, ...others] = predictions.map((found) => found.embedding ?? found);
  mustBe("number", ...first, ...others.flat());
  const cosines = others.map((vector) => dot(first, vector) / Math.sqrt(dot(first, first) * dot(vector, vector)));
  const about = note(`1: the same direction, 0: nothing in common. Vectors of ${first.length} numbers.`);
  if (others.length === 1) {
    const shown = shownCosine(cosines[0]);
    const scale = make("ul", { class: "rows lone" });
    scale.append(make("li", {}, make("span", {}, "Cosine similarity"), make("span", {}, shown), bar(cosines[0])));
    return { parts: [big(shown), scale, about] };
  }
  const found = linesOf(other).map((line, place) => [line, cosines[place]]);
  found.sort((one, another) => another[1] - one[1]);
  const rows = found.map(([line, cosine]) =>
    make("li", {}, make("span", { class: "word" }, line), make("span", {}, shownCosine(cosine)), bar(cosine)),
  );
  return {
    parts: [big(found[0][0]), make("h2", { class: "title" }, "Cosine similarity"), make("ol", { class: "rows" }, ...rows), about],
  };
}

/** Returns a cosine with two digits, of which zero has no sign. */
function shownCosine(cosine) {
  return decimal.format(Math.round(100 * cosine) / 100 + 0);
}

function dot(one, other) {
  return one.reduce((sum, value, place) => sum + value * other[place], 0);
}

/**
 * By signature: the words of its button while it waits; what must be given, and what is said where it is not; a
 * check of what was given; the instances of a call; what an answer looks like, as {parts, mark}; its examples.
 */
export const PANELS = {
  answer: {
    waiting: "Asking…",
    needs: { context: "Write or paste a text to look for the answer in.", question: "Write a question." },
    instances: ({ question, context }) => [{ question, context }],
    show: showAnswer,
    examples: [
      [
        "The lighthouse",
        {
          context:
            "The Lighthouse of Alexandria stood on the island of Pharos, at the entrance of the harbour. It was begun " +
            "under Ptolemy I and finished under his son, about 280 BC. For centuries it was among the tallest " +
            "buildings of the world, at least one hundred metres high. A fire at its top was seen by sailors from " +
            "fifty kilometres away. Three earthquakes between 956 and 1323 damaged it badly, and in 1477 its last " +
            "stones went into the Citadel of Qaitbay, which stands in the same place.",
          question: "From how far away was the fire seen?",
        },
      ],
      [
        "Penicillin",
        {
          context:
            "In September 1928 Alexander Fleming came back from his holidays to his laboratory at St Mary's Hospital " +
            "in London. On a plate with bacteria that he had left on the bench a mould had grown, and around it the " +
            "bacteria had died. He called what the mould gave off penicillin. It took more than ten years until " +
            "Howard Florey, Ernst Chain and Norman Heatley in Oxford could make enough of it to treat a patient.",
          question: "Where did Florey, Chain and Heatley work?",
        },
      ],
      [
        "With emoji",
        {
          context:
            "🎈 Our club meets every Thursday at 7 pm. 🎂 In May we celebrate its twentieth birthday, with Café " +
            "Müller's cake 🍰 and a concert by the Rooftop Strings 🎻. Members pay 12 euros a year, guests nothing.",
          question: "How much do members pay?",
        },
      ],
    ],
  },
  fill_mask: {
    waiting: "Filling in…",
    needs: { text: `Write a text with ${MASK} in it.` },
    check: ({ text }) => (text.includes(MASK) ? {} : { text: `There is no ${MASK} in the text: put one in place of a word.` }),
    instances: ({ text }) => [{ text }],
    show: showWords,
    examples: [
      ["A capital", { text: "Paris is the capital of [MASK]." }],
      ["Two words", { text: "She opened the [MASK] and looked out over the [MASK]." }],
      ["A reason", { text: "It rained all day, so we stayed [MASK]." }],
    ],
  },
  classify: {
    waiting: "Classifying…",
    needs: { sentence_a: "Write a sentence to classify." },
    instances: ({ sentence_a, sentence_b }) => [{ sentence_a, sentence_b }],
    show: showLabel,
    examples: [
      ["A good film", { sentence_a: "A warm, funny film with a cast that never misses a beat.", sentence_b: "" }],
      ["A bad film", { sentence_a: "Two hours of noise in search of a story.", sentence_b: "" }],
      [
        "A pair",
        {
          sentence_a: "The company said its profit rose by a tenth last year.",
          sentence_b: "Last year's profit was ten percent higher, the company said.",
        },
      ],
    ],
  },
  tag: {
    waiting: "Tagging…",
    needs: { text: "Write or paste a text with names in it." },
    instances: ({ text }) => [{ text }],
    show: showEntities,
    examples: [
      ["A biography", { text: "Ada Lovelace was born in London in 1815 and worked with Charles Babbage." }],
      ["News", { text: "Nokia said in Helsinki on Tuesday that Anna Virtanen will lead its office in São Paulo." }],
    ],
  },
  embed: {
    waiting: "Comparing…",
    needs: { one: "Write a text.", other: "Write a text to compare with, or a list of them." },
    instances: ({ one, other }) => [one, ...linesOf(other)].map((text) => ({ text })),
    show: showSimilarity,
    examples: [
      ["Alike", { one: "How do I reset my password?", other: "I forgot my login and need a new one." }],
      ["Unlike", { one: "How do I reset my password?", other: "The train to Lyon leaves at noon." }],
      [
        "A list",
        {
          one: "How do I reset my password?",
          other: [
            "The train to Lyon leaves at noon.",
            "I forgot my login and need a new one.",
            "Where can I see my invoices?",
            "My account is locked.",
          ].join("\n"),
        },
      ],
    ],
  },
};
