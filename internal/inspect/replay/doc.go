// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package replay plays journals again for berth replay: journals of the scheduler and of the
// controllers as recorded, and the scheduler's also under another configuration.
package replay
