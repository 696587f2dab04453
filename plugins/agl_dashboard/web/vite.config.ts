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
    license: { fileName: "licences.md" }, // of all that is bundled; it travels in the wheel
    modulePreload: { polyfill: false },
    target: "es2022",
    rolldownOptions: {
      // Loaded beside the page's own chunk; it stays in the browser's cache when only the page changes.
      output: { codeSplitting: { groups: [{ name: "libraries", test: /node_modules.(react|react-dom|react-router|scheduler|@tanstack)./ }] } },
    },
  },
  server: { proxy: { "/v1": "http://127.0.0.1:4747" } },
});
