import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// Relative URLs: the server writes a <base> that fits the page's path, also behind a proxy.
export default defineConfig({
  base: "./",
  plugins: [react()],
  build: {
    outDir: "../src/agl_dashboard/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  server: { proxy: { "/v1": "http://127.0.0.1:4747" } },
});
