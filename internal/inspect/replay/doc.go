// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package replay plays journals again for berth replay: of the scheduler and of the controllers as
// they were recorded, those of the scheduler also under another configuration.
package replay
