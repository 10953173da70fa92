// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// auditPolicy logs every request except the administrator's requests, which are made by the load
// and the simulated nodes.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [` + administrator + `]
- level: Metadata
`

// audited returns the flags that make an API server write an audit log. The log is not in dir,
// because start empties dir.
func audited(dir string) (flags []string, log string, err error) {
	policy, log := dir+"-audit-policy.yaml", dir+"-audit.log"
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return nil, "", err
	}
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, "", err
	}
	// Effectively disable rotation, which could drop requests.
	const megabytes = "100000"
	return []string{"--audit-policy-file", policy, "--audit-log-path", log, "--audit-log-maxsize", megabytes}, log, os.RemoveAll(log)
}

// request is a request in the audit log.
type request struct {
	AuditID string `json:"auditID"`
	Verb    string `json:"verb"`
	URI     string `json:"requestURI"`
	User    struct {
		Username string `json:"username"`
	} `json:"user"`
	UserAgent string `json:"userAgent"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// what returns the requested resource or, if there is none, the path.
func (r *request) what() string {
	switch {
	case r.ObjectRef.Subresource != "":
		return r.ObjectRef.Resource + "/" + r.ObjectRef.Subresource
	case r.ObjectRef.Resource != "":
		return r.ObjectRef.Resource
	}
	path, _, _ := strings.Cut(r.URI, "?")
	return path
}

// writes reports whether the request may be a write: its verb is not one of the reading verbs.
func (r *request) writes() bool {
	return !slices.Contains([]string{"get", "list", "watch"}, r.Verb)
}

// requests reads an audit log and calls each once per request. (A watch has an entry for its
// beginning and another for its end.)
func requests(log string, each func(*request)) error {
	file, err := os.Open(log)
	if err != nil {
		return err
	}
	defer file.Close()
	seen := map[string]bool{}
	lines := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return nil // ignore an incomplete last line, which is still being written
		}
		if err != nil {
			return err
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		if !seen[r.AuditID] {
			seen[r.AuditID] = true
			each(&r)
		}
	}
}

// kinds counts requests by user, verb, object and result.
type kinds map[kindOfRequest]int

type kindOfRequest struct {
	user, verb, what string
	code             int
}

func (k kinds) add(r *request) {
	k[kindOfRequest{r.User.Username, r.Verb, r.what(), r.ResponseStatus.Code}]++
}

// write prints a table of the requests of the users selected by whom.
func (k kinds) write(to io.Writer, whom func(user string) bool) {
	var rows []kindOfRequest
	for kind := range k {
		if whom(kind.user) {
			rows = append(rows, kind)
		}
	}
	slices.SortFunc(rows, func(a, b kindOfRequest) int {
		return cmp.Or(cmp.Compare(a.user, b.user), cmp.Compare(a.verb, b.verb), cmp.Compare(a.what, b.what), cmp.Compare(a.code, b.code))
	})
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "user\tverb\twhat\tresult\trequests")
	for _, row := range rows {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\n", row.user, row.verb, row.what, row.code, k[row])
	}
	_ = table.Flush() // writes to standard output or a builder
}

// refused reports whether the API server denied the request.
func (k kindOfRequest) refused() bool {
	return k.code == http.StatusForbidden || k.code == http.StatusUnauthorized
}
