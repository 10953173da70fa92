// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package advice tests the suggestions of berth explain on random clusters: it carries out their
// printed commands, and searches for changes that explain misses. It contains tests only.
package advice
