// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2eexplain tests the inspection commands against a live cluster: they only need to read,
// explain's suggestions help when followed, and what-if's forecasts match the actual events.
//
// TestForecastsComeTrue performs random operations; -operations sets their number, and -trouble
// makes nodes fall silent, pods terminate and drains continue meanwhile (go test ./e2e_explain -run
// ComeTrue -operations 100 -trouble -seed 7 -v -timeout 30m). With a hundred or more, 99 % must
// agree. -misses stores the disagreements.
//
// TestAdviceHelpsInRandomClusters carries out each suggestion for the pending pod of random
// clusters as printed, the number of clusters set by -advised 50.
//
// TestDrainsComeTrue drains a node of random clusters, the number set by -drains 1000: what-if, the
// plan of berth drain, kubectl and the drain itself must agree on each pod.
package e2eexplain
