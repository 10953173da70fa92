// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2edeploy installs Berth's manifests on an embedded cluster and runs Berth's parts there
// with the tokens of the parts' ServiceAccounts. It compares their requests with the manifests'
// permissions, tries the possible abuses of such a token, and runs the commands of the pages in
// docs/ as written.
package e2edeploy
