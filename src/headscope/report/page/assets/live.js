// Looks again when the run goes on: where the reader stands is kept.

const STAND = "headscope-stand";
try {
  const kept = sessionStorage.getItem(STAND);
  if (kept !== null) scrollTo(0, Number(kept));
  sessionStorage.removeItem(STAND);
} catch { /* a browser without storage starts at the top */ }

async function look() {
  try {
    const answer = await fetch(page.live, { cache: "no-store" });
    if (!answer.ok || (await answer.json()).stamp === page.stamp) return;
    try { sessionStorage.setItem(STAND, String(scrollY)); } catch { /* as above */ }
    location.reload();
  } catch { /* the server has gone; it may come back */ }
}
setInterval(look, 1500);
