// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package instrument creates metrics of the stability level ALPHA: Berth's own, and upstream's of
// that level.
package instrument
