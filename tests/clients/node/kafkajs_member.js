// A member of a consumer group with kafkajs. SIGTERM makes it leave the group.
//
// The same lines and arguments as in go/line/line.go. kafkajs has one assignor, with a name of its own, so those that
// other clients know are written here, as a user writes them.
'use strict'

const { AssignerProtocol, Kafka, logLevel } = require('kafkajs')

const settings = Object.fromEntries(
  process.argv.slice(2).map(each => [each.slice(0, each.indexOf('=')), each.slice(each.indexOf('=') + 1)])
)
const list = name => (settings[name] ? settings[name].split(',') : [])
const say = (...words) => process.stdout.write(words.join(' ') + '\n')

const divisions = {
  // Each topic in blocks, the larger ones first.
  range: (topic, partitions, members, give) => {
    const size = Math.floor(partitions.length / members.length)
    const larger = partitions.length % members.length
    let at = 0
    members.forEach((member, number) => {
      const end = at + size + (number < larger ? 1 : 0)
      partitions.slice(at, end).forEach(partition => give(member, topic, partition))
      at = end
    })
  },
}

const assigner = name => ({ cluster }) => ({
  name,
  version: 1,
  async assign({ members, topics }) {
    const ids = members.map(each => each.memberId).sort()
    const shares = Object.fromEntries(ids.map(id => [id, {}]))
    const give = (id, topic, partition) => (shares[id][topic] = [...(shares[id][topic] || []), partition])
    let next = 0
    for (const topic of [...topics].sort()) {
      const partitions = cluster.findTopicPartitionMetadata(topic).map(each => each.partitionId).sort((a, b) => a - b)
      if (name === 'range') {
        divisions.range(topic, partitions, ids, give)
      } else {
        partitions.forEach(partition => give(ids[next++ % ids.length], topic, partition))
      }
    }
    return ids.map(memberId => ({
      memberId,
      memberAssignment: AssignerProtocol.MemberAssignment.encode({ version: 1, assignment: shares[memberId] }),
    }))
  },
  protocol: ({ topics }) => ({
    name,
    metadata: AssignerProtocol.MemberMetadata.encode({ version: 1, topics }),
  }),
})

const logged = { [logLevel.ERROR]: 'ERROR', [logLevel.WARN]: 'WARN' }
const kafka = new Kafka({
  brokers: list('servers'),
  clientId: settings.client,
  logLevel: logLevel.WARN,
  logCreator: () => entry => process.stderr.write(`${logged[entry.level]} ${JSON.stringify(entry.log)}\n`),
})
const chosen = list('assignor').map(assigner)
const consumer = kafka.consumer({
  groupId: settings.group,
  sessionTimeout: Number(settings.session),
  heartbeatInterval: 200,
  metadataMaxAge: 1000,
  maxWaitTimeInMs: 200,
  ...(chosen.length ? { partitionAssigners: chosen } : {}),
})

const main = async () => {
  await consumer.connect()
  const topics = settings.pattern ? [new RegExp(`^${settings.pattern}$`)] : list('topics')
  await consumer.subscribe({ topics, fromBeginning: true })
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    const owned = Object.entries(payload.memberAssignment).flatMap(([topic, partitions]) =>
      partitions.map(partition => `${topic}:${partition}`)
    )
    say('assigned', owned.sort().join(','))
  })
  consumer.on(consumer.events.COMMIT_OFFSETS, ({ payload }) => {
    for (const { topic, partitions } of payload.topics) {
      partitions.forEach(each => say('committed', topic, each.partition, each.offset))
    }
  })
  await consumer.run({
    autoCommitInterval: 200,
    eachMessage: async ({ topic, partition, message }) => say('read', topic, partition, message.offset, Date.now()),
  })
  process.on('SIGTERM', async () => {
    await consumer.disconnect()
    process.exit(0)
  })
}

main().catch(error => {
  process.stderr.write(`ERROR ${error.stack}\n`)
  process.exit(1)
})
