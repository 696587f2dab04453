import { Collapsible } from "@base-ui/react/collapsible";
import { Layers, Menu, Search } from "lucide-react";
import { Suspense, lazy, useEffect, useState } from "react";
import { NavLink, Navigate, Route, Routes, useLocation } from "react-router";
import { Connection } from "./components/Connection";
import { Hints } from "./components/Hint";
import { Shortcuts } from "./components/Shortcuts";
import { Toasts } from "./components/Toasts";
import { Empty } from "./components/parts";
import { PAGES } from "./lib/navigation";
import { ResourcesPage } from "./pages/Resources";
import { RolloutPage } from "./pages/Rollout";
import { RolloutsPage } from "./pages/Rollouts";
import { RunsPage } from "./pages/Runs";
import { SettingsPage } from "./pages/Settings";
import { TracesPage } from "./pages/Traces";
import { WorkersPage } from "./pages/Workers";

// The charts are the largest part of the page; the other views open without them.
const TrainingPage = lazy(() => import("./pages/Training"));

export function App() {
  const { pathname } = useLocation();
  const [menu, setMenu] = useState(false);
  useEffect(() => setMenu(false), [pathname]);
  const page = PAGES.find(({ path }) => pathname.startsWith(path));
  useEffect(() => {
    document.title = page ? `${page.label} · agl` : "agl";
  }, [page]);
  return (
    <div className="app">
      <button type="button" className="skip" onClick={() => document.getElementById("main")?.focus()}>
        Skip to content
      </button>
      <Collapsible.Root open={menu} onOpenChange={setMenu} className="bar" render={<header />}>
        <div className="brand">
          <Layers size={18} aria-hidden />
          <span>agl</span>
        </div>
        <Collapsible.Trigger className="icon-button menu-button" aria-label="Menu">
          <Menu size={18} aria-hidden />
        </Collapsible.Trigger>
        <Collapsible.Panel keepMounted className="nav" render={<nav aria-label="Pages" />}>
          {PAGES.map(({ path, label, icon: Icon }) => (
            <NavLink key={path} to={path} className="nav-link">
              <Icon size={16} aria-hidden />
              <span>{label}</span>
            </NavLink>
          ))}
        </Collapsible.Panel>
        <Connection />
      </Collapsible.Root>
      <main id="main" tabIndex={-1}>
        <Suspense fallback={<Opening title={page?.label ?? "agl"} />}>
          <Routes>
            <Route index element={<Navigate to="/rollouts" replace />} />
            <Route path="/rollouts" element={<RolloutsPage />} />
            <Route path="/rollouts/:id" element={<RolloutPage />} />
            <Route path="/training" element={<TrainingPage />} />
            <Route path="/traces" element={<TracesPage />} />
            <Route path="/runs" element={<RunsPage />} />
            <Route path="/workers" element={<WorkersPage />} />
            <Route path="/resources" element={<ResourcesPage />} />
            <Route path="/settings" element={<SettingsPage />} />
            <Route path="*" element={<NotFound />} />
          </Routes>
        </Suspense>
        <Hints />
      </main>
      <Shortcuts />
      <Toasts />
    </div>
  );
}

function Opening({ title }: { title: string }) {
  return (
    <section className="page">
      <h1>{title}</h1>
      <Empty>Loading…</Empty>
    </section>
  );
}

function NotFound() {
  return (
    <section className="page">
      <h1>
        <Search size={18} aria-hidden /> No such page
      </h1>
      <p className="empty">The address names no page of the dashboard.</p>
    </section>
  );
}
