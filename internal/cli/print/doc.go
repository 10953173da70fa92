// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package print writes what commands say beside their answers: progress, what happens meanwhile,
// and whether a condition of --fail-on came true.
package print
