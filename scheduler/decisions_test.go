package scheduler

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/kube/serve"
	"github.com/berth-k8s/berth/internal/scheduler/options"
)

// TestDecisionsAreForThisMachine: by plain HTTP nobody is asked who they are.
func TestDecisionsAreForThisMachine(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:10251": true, "[::1]:10251": true, "127.8.8.8:1": true,
		"0.0.0.0:10251": false, "[::]:10251": false, "10.0.0.7:10251": false, "": false, "localhost": false,
	} {
		if got := isLoopback(address); got != want {
			t.Errorf("%q: %t", address, got)
		}
	}
}

func TestAddressesAreLeftWhereOthersLook(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scheduler.url")
	if err := os.WriteFile(file, []byte("http://127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := options.Add(pflag.NewFlagSet("", pflag.ContinueOnError))
	flags.AddressFile = file
	server, err := serve.Listen(serve.Options{Plain: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	p := &process{command: &command{flags: flags}, server: server}
	if err := p.writeAddresses(); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(file); string(text) != server.URLs()[0]+"\n" {
		t.Errorf("wrote %q", text)
	}
	flags.AddressFile = filepath.Join(file, "no", "folder")
	if err := p.writeAddresses(); err == nil {
		t.Error("a folder that is not there is no error")
	}
}
