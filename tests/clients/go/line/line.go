// Package line is what a member of a group tells the tests: a line on stdout for each assignment, record and commit.
//
//	assigned TOPIC:PARTITION,...       all that it owns now
//	read TOPIC PARTITION OFFSET MS     a record, and the time since 1970
//	committed TOPIC PARTITION OFFSET   the next offset to read
//
// Its arguments are NAME=VALUE: servers, group, client, topics or pattern, assignor, protocol, instance, session.
package line

import (
	"fmt"
	"log"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

var mutex sync.Mutex

func say(format string, values ...any) {
	mutex.Lock()
	defer mutex.Unlock()
	fmt.Printf(format+"\n", values...)
}

// Assigned tells all that the member owns now.
func Assigned(owned map[string][]int32) {
	var names []string
	for topic, partitions := range owned {
		for _, partition := range partitions {
			names = append(names, fmt.Sprintf("%s:%d", topic, partition))
		}
	}
	sort.Strings(names)
	say("assigned %s", strings.Join(names, ","))
}

// Read tells that the member has a record.
func Read(topic string, partition int32, offset int64) {
	say("read %s %d %d %d", topic, partition, offset, time.Now().UnixMilli())
}

// Committed tells that the broker has confirmed a commit.
func Committed(topic string, partition int32, offset int64) {
	say("committed %s %d %d", topic, partition, offset)
}

// Settings are the arguments of the program.
type Settings map[string]string

// Arguments reads them.
func Arguments() Settings {
	found := Settings{}
	for _, each := range os.Args[1:] {
		name, value, _ := strings.Cut(each, "=")
		found[name] = value
	}
	return found
}

// List returns the values of an argument that has several; empty if it has none.
func (s Settings) List(name string) []string {
	if s[name] == "" {
		return nil
	}
	return strings.Split(s[name], ",")
}

// Session is the session timeout.
func (s Settings) Session() time.Duration {
	milliseconds, err := strconv.Atoi(s["session"])
	if err != nil {
		log.Fatalf("session=%q is no number of milliseconds", s["session"])
	}
	return time.Duration(milliseconds) * time.Millisecond
}
