// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-k8s/berth/internal/owned"
)

// AnyContext selects all users and clusters of a kubeconfig, including those not used by any
// context.
const AnyContext = "*"

// Found returns the kubeconfig written by berth up into a data directory, or "". The user did not
// name the file; it is used because it exists. A kubeconfig can run programs, and send any of the
// user's files to its server. Therefore the file must belong to the user, and its context in use
// (the current context if context is empty) must be as harmless as the context written by berth up.
// Other contexts are not checked.
func Found(dataDir, context string) (string, error) {
	path, err := filepath.Abs(filepath.Join(dataDir, "kubeconfig"))
	if err != nil {
		return "", err
	}

	// The directory is checked as well, because anyone with write access to it can replace the
	// file.
	err = cmp.Or(owned.Check(filepath.Dir(path), owned.Writable), owned.Check(path, owned.Accessible))

	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err == nil {
		var config *clientcmdapi.Config
		var text []byte
		if text, err = owned.ReadFile(path); err == nil { // unlike os.ReadFile, returns an error for a FIFO
			config, err = clientcmd.Load(text)
		}
		if err == nil {
			err = harmless(used(config, context))
		}
	}

	if err != nil {
		return "", fmt.Errorf("%s is not trusted: %w: remove it, or, to use it anyway, specify it with --kubeconfig or KUBECONFIG",
			filepath.Join(dataDir, "kubeconfig"), err)
	}
	return path, nil
}

// FoundURL returns the plain HTTP address from a file written by the scheduler of berth up, or "".
// As with Found, the user did not name the file, so it must belong to the user, and the address
// must be on this machine.
func FoundURL(path string) (string, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	err := cmp.Or(owned.Check(filepath.Dir(path), owned.Writable), owned.Check(path, owned.Writable))
	var text []byte
	if err == nil {
		text, err = owned.ReadFile(path)
	}

	for _, line := range strings.Fields(string(text)) {
		if err != nil || !strings.HasPrefix(line, "http://") {
			continue
		}
		var at *url.URL
		if at, err = url.Parse(line); err == nil && isHere(at) {
			return line, nil
		}
		err = cmp.Or(err, fmt.Errorf("%s is not on this machine", line))
	}

	if err != nil {
		return "", fmt.Errorf("%s is not trusted: %w: remove it, or, to use it anyway, specify --scheduler-url", path, err)
	}
	return "", nil
}

// isHere reports whether an address is localhost or a loopback address. Names are not resolved.
func isHere(at *url.URL) bool {
	host := at.Hostname()
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// used returns the user and cluster used by a context of a kubeconfig, or nothing if the context
// does not exist. With AnyContext it returns everything.
func used(config *clientcmdapi.Config, context string) *clientcmdapi.Config {
	if context == AnyContext {
		return config
	}
	part := clientcmdapi.NewConfig()
	c := config.Contexts[cmp.Or(context, config.CurrentContext)]
	if c == nil {
		return part
	}
	if user := config.AuthInfos[c.AuthInfo]; user != nil {
		part.AuthInfos[c.AuthInfo] = user
	}
	if cluster := config.Clusters[c.Cluster]; cluster != nil {
		part.Clusters[c.Cluster] = cluster
	}
	return part
}

// harmless rejects a kubeconfig that runs programs, reads files, or leads to another machine.
func harmless(config *clientcmdapi.Config) error {
	// A user entry could make a client run a program, or send the content of a file to the server.
	for name, user := range config.AuthInfos {
		switch {
		case user.Exec != nil:
			return fmt.Errorf("user %q runs a program (exec: %s)", name, user.Exec.Command)
		case user.AuthProvider != nil:
			return fmt.Errorf("user %q has an auth-provider (%s)", name, user.AuthProvider.Name)
		case user.TokenFile != "" || user.ClientCertificate != "" || user.ClientKey != "":
			return fmt.Errorf("user %q names a file as its credentials", name)
		}
	}

	// The client would send its credentials to another machine, directly or through a proxy.
	for name, cluster := range config.Clusters {
		server, err := url.Parse(cluster.Server)
		if err != nil {
			return fmt.Errorf("cluster %q: %w", name, err)
		}
		if !isHere(server) || cluster.ProxyURL != "" {
			return fmt.Errorf("cluster %q is not on this machine (%s)", name, cluster.Server)
		}
	}

	return nil
}

// IsListening returns the server address of a kubeconfig returned by Found, and reports whether a
// process listens on it. It returns false only if the connection is refused; for any other failure,
// the error of the caller's own request is more useful. It takes a second at most.
func IsListening(kubeconfig string) (address string, answers bool) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return "", true // the client that loads the file reports the error
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.Clusters[current.Cluster] == nil {
		return "", true
	}
	server, err := url.Parse(config.Clusters[current.Cluster].Server)
	if err != nil || server.Port() == "" {
		return "", true
	}
	connection, err := net.DialTimeout("tcp", server.Host, time.Second)
	if err != nil {
		return server.Host, !errors.Is(err, syscall.ECONNREFUSED)
	}
	_ = connection.Close()
	return server.Host, true
}
