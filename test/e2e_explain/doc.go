// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2eexplain tests the inspection commands against a live cluster: they need only read
// permissions, suggestions of explain help if they are followed, and forecasts of what-if match the
// actual events.
//
// TestForecastsComeTrue performs random operations. The flag -operations sets their number. With
// -trouble, nodes stop their heartbeats, pods terminate and drains continue during the forecasts
// (go test ./e2e_explain -run ComeTrue -operations 100 -trouble -seed 7 -v -timeout 30m). For a
// hundred or more operations, 99 % of the pods must agree. -misses sets a folder for wrong
// forecasts.
//
// TestAdviceHelpsInRandomClusters follows each suggestion for the pending pod of random clusters as
// printed. The flag -advised sets the number of clusters.
//
// TestDrainsComeTrue drains a node of random clusters; the flag -drains sets their number. what-if,
// the plan of berth drain, kubectl and the drain itself must agree on each pod.
package e2eexplain
