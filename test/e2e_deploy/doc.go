// Package e2edeploy installs Berth's manifests on an embedded cluster and runs Berth's parts there
// with the tokens of their own ServiceAccounts: what they ask for is compared with what the
// manifests grant, what somebody with such a token could do is tried, and what the pages in docs/
// say is run as written.
package e2edeploy
