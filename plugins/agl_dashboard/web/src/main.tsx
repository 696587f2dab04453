import { QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { BrowserRouter } from "react-router";
import { App } from "./App";
import { ApiError } from "./api/client";
import { listen, noteError } from "./api/live";
import { settings } from "./lib/settings";
import "uplot/dist/uPlot.min.css";
import "./styles/base.css";
import "./styles/pages.css";

settings.start();
const client = new QueryClient({
  queryCache: new QueryCache({ onError: noteError }),
  defaultOptions: {
    queries: {
      staleTime: 5_000,
      refetchOnWindowFocus: false,
      // The event stream notices when the server is back and refreshes everything.
      retry: (failures, error) => failures < 2 && error instanceof ApiError && error.status >= 500,
      networkMode: "always",
    },
    mutations: { networkMode: "always" },
  },
});
void listen(client);

const root = document.getElementById("root");
if (root === null) throw new Error("the page has no #root");
createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <BrowserRouter basename={new URL(document.baseURI).pathname.replace(/\/$/, "")}>
        <App />
      </BrowserRouter>
    </QueryClientProvider>
  </StrictMode>,
);
