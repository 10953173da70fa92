// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// TestReadingIsEnough verifies that the inspection commands work completely with a role that
// permits only get, list and watch, and no access to secrets.
func TestReadingIsEnough(t *testing.T) {
	must(t, "", "kubectl", "apply", "-f", "testdata/view.yaml")
	token := strings.TrimSpace(must(t, "", "kubectl", "create", "token", "asker"))
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	asker := api.NewConfig()
	asker.Clusters["c"] = &api.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData, CertificateAuthority: config.CAFile}
	asker.AuthInfos["u"] = &api.AuthInfo{Token: token}
	asker.Contexts["x"] = &api.Context{Cluster: "c", AuthInfo: "u"}
	asker.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*asker, kubeconfig); err != nil {
		t.Fatal(err)
	}
	for _, denied := range [][]string{{"create", "pods"}, {"list", "secrets"}, {"patch", "nodes"}} {
		if out, err := berth(t, kubeconfig, "kubectl", "auth", "can-i", denied[0], denied[1]); err == nil {
			t.Fatalf("the asker may %v: %s", denied, out)
		}
	}
	must(t, "", "kubectl", "run", "asked", "--image=nginx")
	t.Cleanup(func() { must(t, "", "kubectl", "delete", "pod", "asked", "--wait=false") })
	recording := filepath.Join(t.TempDir(), "recording")
	for _, args := range [][]string{
		{"explain", "pod/asked"},
		{"what-if", "drain", "node/node-1", "--force", "--ignore-daemonsets"},
		{"what-if", "taint", "node/node-2", "k=v:NoExecute"},
		{"record", "-o", recording, "--once"},
	} {
		must(t, kubeconfig, args...)
	}
	if _, err := os.Stat(filepath.Join(recording, "secrets.json")); err == nil {
		t.Error("secrets were recorded")
	}
	must(t, "/nowhere", "explain", "pod/asked", "-f", recording)
	must(t, "/nowhere", "what-if", "drain", "node/node-1", "--force", "-f", recording)
	must(t, "/nowhere", "simulate", "-f", recording)
}
