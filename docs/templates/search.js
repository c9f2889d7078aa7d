// Sphinx reads this after its own search.

// A page that was opened from a folder may not read others for their summaries.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// First the pages that have all words in their title, best at its beginning; last the records of single results.
Scorer.score = ([page, title, , , score]) => {
  const query = new URLSearchParams(location.search).get("q").trim().toLowerCase();
  const name = title.toLowerCase();
  const isNamed = query.split(/\s+/).every((word) => name.includes(word));
  return score + (isNamed ? 20 : 0) + (name.startsWith(query) ? 5 : 0) - (page.startsWith("evidence/") ? 20 : 0);
};
