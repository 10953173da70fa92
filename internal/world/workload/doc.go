// Package workload has the rules of the controllers that make pods: which pods they make, which one
// replaces another and when, which ones they remove when they are scaled down, and when a rollout
// is done. They are pure rules over API objects: forecasts, plans of moves and drains ask the same.
//
// Whose pod it is, and which pod is the successor of another, is in package rules, because the
// scheduler asks that, too.
package workload
