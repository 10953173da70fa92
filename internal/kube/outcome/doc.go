// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package outcome converts errors of API requests to the outcomes that the cores understand.
package outcome
