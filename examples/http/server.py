"""The server that env.yaml asks: opening hours of a few made-up places, on http://127.0.0.1:8765.

python examples/http/server.py
"""

from __future__ import annotations

from aiohttp import web

PLACES = {
    "harbour museum": {"opens": 9, "closes": 17, "days": ["Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]},
    "mill bakery": {"opens": 6, "closes": 13, "days": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat"]},
    "night library": {"opens": 14, "closes": 23, "days": ["Mon", "Wed", "Fri"]},
}


async def place(request: web.Request) -> web.Response:
    found = PLACES.get(request.match_info["name"].casefold())
    if found is None:
        raise web.HTTPNotFound(text=f"no such place; known: {', '.join(PLACES)}")
    return web.json_response({"place": {"name": request.match_info["name"], "hours": found}})


def application() -> web.Application:
    app = web.Application()
    app.router.add_get("/places/{name}", place)
    return app


if __name__ == "__main__":
    web.run_app(application(), host="127.0.0.1", port=8765)
