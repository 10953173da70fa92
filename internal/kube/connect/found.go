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

// AnyContext stands for all contexts of a kubeconfig, and for users and clusters in none.
const AnyContext = "*"

// Found is the kubeconfig that berth up wrote into a data directory, "" if there is none. Nobody
// has named the file: it is used because it is there. So it must belong to the user, and the
// context that is used, "" for the current one, must contain no more than berth up writes: a
// kubeconfig can run programs, and send any of the user's files to its server. Other contexts,
// which the user may have added, do not matter.
func Found(dataDir, context string) (string, error) {
	path, err := filepath.Abs(filepath.Join(dataDir, "kubeconfig"))
	if err != nil {
		return "", err
	}

	// The directory as well: who may write there can replace the file.
	err = owned.Check(filepath.Dir(path), owned.Writable)
	if err == nil {
		err = owned.Check(path, owned.Accessible)
	}

	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err == nil {
		var config *clientcmdapi.Config
		var text []byte
		if text, err = owned.ReadFile(path); err == nil { // a FIFO would be waited for
			config, err = clientcmd.Load(text)
		}
		if err == nil {
			err = harmless(used(config, context))
		}
	}

	if err != nil {
		return "", fmt.Errorf("%s is not trusted: %w: remove it, or, if you mean it, name it with --kubeconfig or KUBECONFIG",
			filepath.Join(dataDir, "kubeconfig"), err)
	}
	return path, nil
}

// FoundURL is the plain HTTP address in a file that a scheduler of berth up has left, "" if there
// is none. As for Found, nobody has named the file: it must be the user's, and the address on this
// machine.
func FoundURL(path string) (string, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	err := owned.Check(filepath.Dir(path), owned.Writable)
	if err == nil {
		err = owned.Check(path, owned.Writable)
	}

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
		return "", fmt.Errorf("%s is not trusted: %w: remove it, or, if you mean it, say --scheduler-url", path, err)
	}
	return "", nil
}

// isHere reports whether an address leads to this machine, going by the address alone: names other
// than localhost are not resolved.
func isHere(at *url.URL) bool {
	host := at.Hostname()
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// used returns what of a kubeconfig a context uses: a user and a cluster, or nothing where the
// context does not exist. With AnyContext it is everything.
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
	// What a user could make a client do: run a program, or send the content of a file to the
	// server.
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

	// Where the client would send its credentials, directly or by a proxy.
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

// Answers reports whether anything listens at the server of a kubeconfig that Found has returned,
// which is on this machine, and where that is. Only a refused connection is a no: whatever else is
// wrong, the request itself says better. It takes a second at most.
func Answers(kubeconfig string) (address string, answers bool) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return "", true // whoever uses it says what is wrong with it
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
