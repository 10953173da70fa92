// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2emodule tests Berth's modules from the view of another repository. It publishes the
// modules of this tree in a module proxy made of files, and runs the test of an external module
// that requires them by their versions, without `replace`.
package e2emodule
