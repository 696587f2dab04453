// The pages, in the order of the menu. `g` and then the key opens one.
import { Activity, Boxes, ChartLine, List, Play, Server, Settings } from "lucide-react";

export const PAGES = [
  { path: "/rollouts", label: "Rollouts", icon: List, key: "r" },
  { path: "/training", label: "Training", icon: ChartLine, key: "t" },
  { path: "/traces", label: "Traces", icon: Activity, key: "s" },
  { path: "/runs", label: "Runs", icon: Play, key: "u" },
  { path: "/workers", label: "Workers", icon: Server, key: "w" },
  { path: "/resources", label: "Resources", icon: Boxes, key: "e" },
  { path: "/settings", label: "Settings", icon: Settings, key: "," },
] as const;

